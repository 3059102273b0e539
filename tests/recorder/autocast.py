"""Small trainings under autocast, with clipping, loss scaling, several micro-batches and several calls a pass."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform

STEPS, BATCH, WORDS = 10, 6, 9


class Transformer(nn.Module):
    """One block: attention and a feed-forward part, with a residual stream in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, words: Tensor) -> Tensor:
        stream = self.embedding(words)
        normed = F.layer_norm(stream, (8,))
        attended = F.scaled_dot_product_attention(self.query(normed), self.key(normed), self.value(normed))
        stream = stream + self.out(attended)
        stream = stream + self.down(F.gelu(self.up(F.layer_norm(stream, (8,)))))
        logits: Tensor = self.head(F.layer_norm(stream, (8,)))
        return logits


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, WORDS))


@dataclass(frozen=True)
class Setting:
    """How to train."""

    optimizer: str = "AdamW"
    dtype: torch.dtype = torch.bfloat16
    storage: str = "float32"
    clip: bool = False
    micro_batches: int = 1
    calls: int = 1  # of the model, in each of them
    apart: bool = False  # each call under an autocast of its own
    model: Any = perceptron
    weights: torch.dtype = torch.float32

    def __str__(self) -> str:
        names = (self.optimizer, str(self.dtype)[6:], self.storage, self.model.__name__)
        return " ".join([*names, *(["clip"] if self.clip else []), f"{self.micro_batches}x{self.calls}"])


@dataclass(frozen=True)
class Trained:
    """A model, and its parameters after 0, 1, ... steps."""

    model: nn.Module
    memory: dualform.Memory
    states: list[dict[str, Tensor]] = field(default_factory=list)


def batch(setting: Setting) -> tuple[Tensor, Tensor]:
    if setting.model is not perceptron:
        words = torch.randint(WORDS, (BATCH, 5))
        return words, (2 * words + 1) % WORDS
    inputs = torch.randn(BATCH, 8)
    return inputs.to(setting.weights), inputs.argmax(dim=1)


def train(path: Path, setting: Setting) -> Trained:
    """Ten steps in two chapters."""
    torch.manual_seed(0)
    model = setting.model().to(setting.weights)
    options: dict[str, Any] = {"lr": 1e-2} if setting.optimizer == "AdamW" else {"lr": 0.1, "momentum": 0.9}
    optimizer = getattr(torch.optim, setting.optimizer)(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4, enabled=setting.dtype == torch.float16)
    states = [_state(model)]
    with dualform.record(model, optimizer, path, dtype=setting.storage) as recorder:
        for step in range(STEPS):
            recorder.tag(id=torch.arange(BATCH))
            optimizer.zero_grad()
            for _ in range(setting.micro_batches):
                losses = []
                for calls in [1] * setting.calls if setting.apart else [setting.calls]:
                    with torch.autocast("cpu", setting.dtype, enabled=setting.weights == torch.float32):
                        losses += [_loss(model, *batch(setting)) for _ in range(calls)]
                scaler.scale(torch.stack(losses).mean()).backward()
            if setting.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()
            states.append(_state(model))
            if step == STEPS // 2:
                recorder.sync()
    return Trained(model, dualform.load(path), states)


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).float().flatten(end_dim=-2), targets.flatten())


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
