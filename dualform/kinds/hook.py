"""Hook a user's module so that its copies are free of the hook.

    module.register_forward_hook(ModuleHook(torch.compiler.disable(on_forward, **WHY_DISABLED)), with_kwargs=True)

Modules take their hooks with them where they are copied or pickled: an average of weights, the best model so far, a
process that is spawned. A plain function would be called for the copy too, and one defined inside another cannot be
pickled at all. In a copy, this hook is a function of the standard library that does nothing; so a pickle can be loaded
where dualform is not installed.
"""

from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import Any

import torch

FULLGRAPH = "dualform records between two graphs: compile without fullgraph=True, or outside of the recording"
# what torch says where a graph must not break, since 2.7
WHY_DISABLED = {"reason": FULLGRAPH} if "reason" in signature(torch.compiler.disable).parameters else {}


class ModuleHook(partial[Any]):
    """A function as a hook of a module, of any sort that is called with positional arguments.

    A lasting one is to be kept from torch.compile with `torch.compiler.disable`, which runs it as plain Python, between
    two graphs.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave something inert in a copy or a pickle: it takes any arguments, and returns None."""
        return getattr, (nullcontext(), "__exit__")
