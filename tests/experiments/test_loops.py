"""The pieces all training loops share."""

import torch

from dualform.experiments.loops import epochs


def test_every_batch_is_full_and_an_epoch_has_no_row_twice() -> None:
    epoch = torch.cat(list(epochs(100, 32, 3, seed=0)))
    assert len(epoch) == 3 * 32 == len(set(epoch.tolist()))
