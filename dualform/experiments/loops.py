"""Parts that the training loops of all experiments share: a seeded network, shuffled epochs, one thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def seeded(network: Callable[[], Network], seed: int) -> Network:
    """Return a network initialised with a seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):  # torch's initialisers use the global generator only
        torch.manual_seed(seed)
        return network()


def epochs(examples: int, batch: int, steps: int, seed: int | torch.Generator) -> Iterator[Tensor]:
    """Yield the row numbers of each batch, every epoch in a new order; an incomplete last batch is left out."""
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    per_epoch = examples // batch
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(examples, generator=generator)
        first = step % per_epoch * batch
        yield order[first : first + batch]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine, threads would wait for minutes for each other's small products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
