"""Models as people write them, recorded whole: every parameter is attributed, certified, and adds up to the output.

Those of Hugging Face are in test_huggingface.py, PyTorch's Transformer in tests/kinds/test_projections.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import dualform

pytestmark = pytest.mark.slow

BATCH, CLASSES, TIME = 4, 10, 8


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1, self.conv2 = nn.BatchNorm2d(out), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2, self.relu = nn.BatchNorm2d(out), nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        hidden += self.downsample(x)
        return self.relu(hidden)  # type: ignore[no-any-return]


class ConvNextBlock(nn.Module):
    """Depthwise convolution, norm over channels, two pointwise linear layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(hidden))).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """As in nanoGPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class NanoGPT(nn.Module):
    """The last token's logits, by a head whose weight is the embedding's."""

    def __init__(self, vocabulary: int = 20, width: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(TIME, width)
        self.h, self.ln_f = nn.Sequential(Block(width, 2), Block(width, 2)), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.ln_f(self.h(self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))))
        return self.lm_head(hidden[:, -1])  # type: ignore[no-any-return]


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, CLASSES),
    )  # fmt: skip


def pooled(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def images(channels: int, size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(BATCH, channels, size, size)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "LeNet": (lenet, images(1, 28)),
    "ResNet": (lambda: pooled(Residual(3, 6, 1), Residual(6, 8, 2), channels=8), images(3, 12)),
    "ConvNeXt": (lambda: pooled(nn.Conv2d(3, 6, 4, 4), ConvNextBlock(6), channels=6), images(3, 32)),
    "nanoGPT": (NanoGPT, lambda: torch.randint(20, (BATCH, TIME))),
}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", MODELS)
def test_all_of_it_is_attributed_and_adds_up(tmp_path: Path, name: str, optimizer: Any) -> None:
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model, before = make().train(), make()
    before.load_state_dict(model.state_dict())
    stepped = optimizer(model.parameters(), lr=1e-3)
    with dualform.record(model, stepped, tmp_path / "run", dtype="float32") as recorder:
        for step in range(6):
            recorder.tag(id=torch.arange(BATCH) + BATCH * (step % 2))
            stepped.zero_grad()
            F.cross_entropy(model(batch()), torch.randint(CLASSES, (BATCH,))).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            stepped.step()
        assert recorder.notes == []
    memory = dualform.load(tmp_path / "run")
    assert memory.coverage.attributed == 1.0, str(memory.coverage)
    assert memory.verify().ok, str(memory.verify())
    weights = dict(model.named_parameters())
    for layer in memory.layers:
        for parameter, weight in memory.weights(layer).items():
            assert_close(weight, weights[parameter].detach(), rtol=1e-4, atol=1e-6)
    for parameter, weight in memory.without(step=[*range(6)]).model(model).named_parameters():
        if optimizer is torch.optim.SGD:  # AdamW decays
            assert_close(weight, before.get_parameter(parameter), rtol=0, atol=1e-6)

    inputs = batch()
    last = memory.attend(model, inputs)[memory.layers[-1]]
    logits = model.eval()(inputs).detach()
    assert_close(last.output(), logits, rtol=1e-4, atol=1e-4)
    own = last.contribution(3)
    shared = [last.contribution(3, slots_of=layer).total()["total"] for layer in last.shares_with]
    total = own.initial() + sum(map(torch.from_numpy, [own.total()["total"], *shared]))
    assert_close(total.float(), logits[:, 3], rtol=1e-4, atol=1e-4)
