"""Name a model's modules, parameters and buffers as the plain model does, whatever it is wrapped in.

    dict(named_modules(torch.compile(model)))       # {"": model, "fc": ...} and no "_orig_mod.fc"

Wrappers are told by their class, and not by the names of what they hold: a model may have a `module` of its own.
"""

from collections.abc import Iterator

from torch import Tensor, nn

# torch's own, by class, and what they call the model in them. To import the compiler for its class would take seconds.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "AveragedModel": "module",
    "OptimizedModule": "_orig_mod",
}


def clean_names(model: nn.Module) -> dict[str, str]:
    """Return the name of each module without wrappers, by the one that torch gives it."""
    modules, names = dict(model.named_modules(remove_duplicate=False)), {"": ""}
    for name in (name for name in modules if name):
        parent, _, own = name.rpartition(".")
        within = names[parent]
        names[name] = within if own == _wrapped(modules[parent]) else f"{within}.{own}".lstrip(".")
    return names


def _wrapped(module: nn.Module) -> str | None:
    """Return what a wrapper calls the model in it; None: the module is no wrapper."""
    bases = (base for base in type(module).__mro__ if base.__module__.startswith("torch."))
    return next((_WRAPPERS[base.__name__] for base in bases if base.__name__ in _WRAPPERS), None)


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its name; of a wrapper and what is in it, both by one name, the wrapper first."""
    names = clean_names(model)
    for name, module in model.named_modules():
        yield names[name], module


def named_parameters(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter with its name; a tied one by its first, or by all of them."""
    names = clean_names(model)
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        yield _within(names, name), parameter


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every buffer with its name."""
    names = clean_names(model)
    for name, buffer in model.named_buffers():
        yield _within(names, name), buffer


def _within(names: dict[str, str], name: str) -> str:
    module, _, own = name.rpartition(".")
    return f"{names[module]}.{own}".lstrip(".")
