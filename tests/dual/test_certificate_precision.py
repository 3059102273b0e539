"""Products in float32 cost a certificate nothing, also where errors are tiny or huge."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import dualform
from dualform import Certificate


def certificate(path: Path, size: float) -> Certificate:
    """Of a training whose errors are of this size, and which learns the same: 12,800 slots."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / size, momentum=0.9)
    inputs, labels = torch.randn(2000, 30), torch.randint(10, (2000,))
    with dualform.record(model, optimizer, path, dtype="float32") as recorder:
        for _ in range(100):
            some = torch.randint(2000, (128,))
            recorder.tag(id=some)
            optimizer.zero_grad()
            (size * F.cross_entropy(model(inputs[some]), labels[some])).backward()
            optimizer.step()
    return dualform.load(path).verify()


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-40, 2.0**100])
def test_a_float32_run_is_certified_to_its_rounding(tmp_path: Path, size: float) -> None:
    of_size, ordinary = certificate(tmp_path / "run", size), certificate(tmp_path / "ordinary", 1.0)
    assert of_size.ok
    assert of_size.relative_error < 2e-6
    for name, layer in of_size.layers.items():
        whole, expected = layer.whole, ordinary.layers[name].whole
        assert whole is not None
        assert expected is not None
        for parameter, distance in whole.parameters.items():
            assert_close(distance.floor, expected.parameters[parameter].floor, rtol=1e-3, atol=0.0)
