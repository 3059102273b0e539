"""The pieces all trainings share."""

import pytest
import torch

from dualform.errors import QueryError
from dualform.experiments.loops import ShuffledEpochs


def shuffled(phases: list[tuple[int, int]], **options: object) -> ShuffledEpochs:
    return ShuffledEpochs(phases, 32, torch.Generator().manual_seed(0), **options)  # type: ignore[arg-type]


def test_every_batch_is_full_and_an_epoch_has_no_row_twice() -> None:
    epochs = shuffled([(100, 3)])
    epoch = torch.cat([epochs[step].rows for step in range(3)])
    assert len(epoch) == 3 * 32 == len(set(epoch.tolist()))


def test_a_batch_is_that_of_a_loop_from_the_beginning_whichever_is_asked_for_first() -> None:
    generator = torch.Generator().manual_seed(0)
    expected, moves = [], []
    for examples, steps in ((100, 5), (70, 3)):  # the second phase breaks into an epoch of the first
        for step in range(steps):
            if step % (examples // 32) == 0:
                order = torch.randperm(examples, generator=generator)
            first = step % (examples // 32) * 32
            expected.append(order[first : first + 32].tolist())
            moves.append(float(torch.rand(1, generator=generator)))
    epochs = shuffled([(100, 5), (70, 3)], draw=lambda step, random: float(torch.rand(1, generator=random)))
    for step in (6, 0, 7, 3, 6):
        assert epochs[step].rows.tolist() == expected[step]
        assert epochs[step].drawn == moves[step]
        assert epochs[step].phase == (step >= 5)
    assert len(epochs) == 8


def test_there_is_no_step_after_the_last_and_no_batch_of_too_few() -> None:
    with pytest.raises(QueryError, match="has 3 steps, and there is no step 3"):
        shuffled([(100, 3)])[3]
    with pytest.raises(QueryError, match="a batch of 32 cannot be drawn from 31 examples"):
        shuffled([(31, 3)])
