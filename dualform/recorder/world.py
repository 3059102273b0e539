"""The processes of a distributed training, as a recording needs them: which one this is, and what all of them know.

    world = world_of(model)                 # ALONE, unless the model is wrapped in DistributedDataParallel
    world.gather(summary)                   # what every process has, in their order
    world.all(begin)                        # done by all; what fails in one is raised in all
    world.mean(array)                       # over all processes, as the gradients of the training are

Messages go through a group of their own, on the CPU, so that they never come between the collectives of the training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from dualform.errors import DualformError, ProcessLost, RecordingError

T = TypeVar("T")

_REPLICAS = "DistributedDataParallel"
_COMPILED = "OptimizedModule"


@dataclass(frozen=True)
class World:
    """This process among `size` others, each of which runs the same lines."""

    rank: int = 0
    size: int = 1
    group: Any = None
    wrapper: nn.Module | None = None  # around the model, if it was passed

    def gather(self, message: T) -> list[T]:
        """Return the messages of all processes, in their order; waits until each has sent its own."""
        if self.size == 1:
            return [message]
        messages: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(messages, message, group=self.group)
        except RuntimeError as error:  # of the transport: closed by its peer, or timed out
            raise ProcessLost(
                f"another process of the training has ended or hangs, so process {self.rank} does not record any "
                f"further: {_first_sentence(error)}. What was sealed before is kept"
            ) from error
        return messages

    def mean(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean over all processes."""
        if self.size == 1:
            return array
        total: NDArray[np.float64] = np.sum(self.gather(array), axis=0) / self.size  # in one order everywhere
        return total

    def wait(self) -> None:
        """Wait for what others do in `all`; raise what fails there."""
        self.all(lambda: None)

    def all(self, action: Callable[[], T]) -> T:
        """Do something in all processes; raise in all of them what fails in any."""
        result, failure = None, None
        try:
            result = action()
        except DualformError as error:
            if self.size == 1:
                raise
            failure = type(error), str(error)
        for rank, failed in enumerate(self.gather(failure)):
            if failed is not None:
                kind, text = failed
                raised = kind.__new__(kind)  # past its own arguments: the text is whole
                Exception.__init__(raised, text if rank in (0, self.rank) else f"process {rank}: {text}")
                raise raised
        return result  # type: ignore[return-value]


ALONE = World()


def unwrapped(model: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """Return the model inside of DistributedDataParallel, compiled or not, and the wrapper, if there is one."""
    inner = model
    while _is(inner, _COMPILED):
        inner = inner._orig_mod  # type: ignore[assignment]
    if not _is(inner, _REPLICAS):
        return model, None
    return inner.module, inner  # type: ignore[return-value]


def join_world(wrapper: nn.Module | None) -> World:
    """Meet the other processes of a training that torch.distributed has begun; all of them have to call this."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RecordingError("there is one process only: torch.distributed.init_process_group was not called")
    if dist.get_world_size() == 1:
        return ALONE
    return World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"), wrapper)


def _is(module: nn.Module, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith("torch.") for base in type(module).__mro__)


def _first_sentence(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0].split(". ")[0]
