"""Whose rows are, found the slow way: change one example, or one of its tokens, and see which keys change."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dualform.store import Run, Where

Change = Callable[[], Any]  # calls the model, with something changed


def recorded_tags(run: Where, layer: str, tag: str = "id") -> list[Any]:
    """A tag of all slots, in the order they were made; None where a slot has none."""
    shards = [shard for _, shard in Run(run).chapters if shard.slots(layer)]
    return [value for shard in shards for value in shard.decoded(layer, tag).tolist()]


def keys_of(model: nn.Module, layers: Sequence[str], call: Change) -> dict[str, Tensor]:
    """What goes into each layer, all calls of it one after the other: (rows, width)."""
    seen: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    modules = dict(model.named_modules())

    def note(layer: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            inputs = (args[0] if args else next(iter(kwargs.values()))).detach()
            seen[layer].append(_rows(module, inputs).clone())

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    handles = [note(layer, modules[layer]) for layer in layers]
    training = model.training
    model.eval()
    with torch.random.fork_rng():
        call()
    model.train(training)
    for handle in handles:
        handle.remove()
    return {layer: torch.cat(calls) for layer, calls in seen.items() if calls}


def _rows(module: nn.Module, inputs: Tensor) -> Tensor:
    """What a module multiplies, row by row: patches of a convolution, pixels of what has its channels first."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        width = module.weight[0].numel() * module.groups
        weight = torch.eye(width).view(width, module.in_channels, *module.kernel_size)
        convolve: Any = F.conv1d if isinstance(module, nn.Conv1d) else F.conv2d
        options = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation}
        patches: Tensor = convolve(inputs, weight, **options)
        return patches.movedim(1, -1).reshape(-1, width)
    if not inputs.is_floating_point():
        return inputs.reshape(-1, 1)
    if isinstance(module, nn.BatchNorm2d) or getattr(module, "data_format", "") == "channels_first":
        inputs = inputs.movedim(1, -1)
    return inputs.reshape(-1, inputs.shape[-1])


def changed_rows(
    model: nn.Module, layers: Sequence[str], call: Change, changes: Sequence[Change]
) -> dict[str, list[list[int]]]:
    """Which of the changes have changed each row of each layer."""
    before = keys_of(model, layers, call)
    after = [keys_of(model, layers, change) for change in changes]
    found = {}
    for layer, keys in before.items():
        differs = [((other[layer] - keys).abs() > 1e-5 * keys.abs().max()).any(dim=1) for other in after]
        found[layer] = [[i for i, by_row in enumerate(differs) if by_row[row]] for row in range(len(keys))]
    return found
