"""Hook a user's module so that its copies are free of the hook.

    module.register_forward_hook(ModuleHook(on_forward, lasting=True), with_kwargs=True)

Modules take their hooks with them where they are copied or pickled: an average of weights, the best model so far, a
process that is spawned. A plain function would be called for the copy too, and one defined inside another cannot even be
pickled. In a copy, this hook is a function of the standard library that does nothing; so a pickle can be loaded where
dualform is not installed.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch


class ModuleHook(partial[Any]):
    """A function to be registered as a hook of a module, of any sort that is called with positional arguments.

    Args:
        function: What to call; torch.compile runs it as plain Python, between two graphs.
        lasting: Whether the hook stays while the user works, who may compile the model.
    """

    def __new__(cls, function: Callable[..., Any], *, lasting: bool) -> "ModuleHook":
        if lasting or "torch._dynamo" in sys.modules:  # to import the compiler for nothing would take seconds
            function = torch.compiler.disable(function)
        return super().__new__(cls, function)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave something inert in a copy or a pickle: it takes any arguments, and returns None."""
        return getattr, (nullcontext(), "__exit__")
