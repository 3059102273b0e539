"""Every test of the recorder begins with the same random numbers."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)
