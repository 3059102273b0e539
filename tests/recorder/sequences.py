"""A language model, and the same one unrolled token by token with everything in view: the naive reference."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualform.nn import LSTM

VOCABULARY, WIDTH, HIDDEN = 7, 3, 4


class Model(nn.Module):
    """Two LSTM layers between an embedding and a decoder."""

    def __init__(self, batch_first: bool, padding: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=padding)
        self.lstm = LSTM(WIDTH, HIDDEN, num_layers=2, batch_first=batch_first)
        self.decoder = nn.Linear(HIDDEN, VOCABULARY)
        self.double()

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        output, state = self.lstm(self.embedding(tokens), state)
        return self.decoder(output), state


@dataclass
class Slots:
    """What went through a layer, one entry a token."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class Unrolled:
    """The model by hand: every gate of every token is a tensor of its own, whose gradient autograd keeps."""

    def __init__(self, model: Model) -> None:
        self.parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
        self.initial = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.padding = model.embedding.padding_idx
        self.slots = {name: Slots() for name in ("embedding", "lstm.l0", "lstm.l1", "decoder")}

    def step(self, rows: tuple[Tensor, Tensor, Tensor], state: Any, lr: float) -> Any:
        """One step of plain SGD on tokens, targets and positions, (time, batch) each; the state it ended in."""
        tokens, targets, positions = rows
        seen: list[tuple[str, Tensor, Tensor, int]] = []  # layer, key, output, position
        p, losses = self.parameters, []
        hidden, cell = state if state is not None else (torch.zeros(2, 2, tokens.shape[1], HIDDEN).double())
        hidden, cell = [list(one.unbind()) for one in (hidden, cell)]  # layer -> (batch, hidden)
        for time, batch in enumerate(tokens):
            key = F.one_hot(batch, VOCABULARY).double()
            inputs = key @ p["embedding.weight"]
            self._see(seen, "embedding", key, inputs, positions[time])
            for layer in range(2):
                key = torch.cat([inputs, hidden[layer]], dim=1)
                weight = torch.cat([p[f"lstm.weight_ih_l{layer}"], p[f"lstm.weight_hh_l{layer}"]], dim=1)
                gates = key @ weight.mT + p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
                self._see(seen, f"lstm.l{layer}", key, gates, positions[time])
                i, f, g, o = gates.chunk(4, dim=1)
                cell[layer] = f.sigmoid() * cell[layer] + i.sigmoid() * g.tanh()
                inputs = hidden[layer] = o.sigmoid() * cell[layer].tanh()
            logits = inputs @ p["decoder.weight"].mT + p["decoder.bias"]
            self._see(seen, "decoder", inputs, logits, positions[time])
            losses.append(F.cross_entropy(logits, targets[time], reduction="sum"))
        loss = torch.stack(losses).sum() / tokens.numel()
        gradients = torch.autograd.grad(loss, list(p.values()), retain_graph=True)
        errors = torch.autograd.grad(loss, [output for _, _, output, _ in seen])
        self._keep(seen, errors)
        with torch.no_grad():
            for (name, parameter), gradient in zip(p.items(), gradients, strict=True):
                if name == "embedding.weight" and self.padding is not None:
                    gradient[self.padding] = 0
                parameter -= lr * gradient
        return torch.stack(hidden).detach(), torch.stack(cell).detach()

    @staticmethod
    def _see(seen: list[Any], layer: str, key: Tensor, output: Tensor, positions: Tensor) -> None:
        seen.append((layer, key.detach(), output, positions))

    def _keep(self, seen: list[Any], errors: tuple[Tensor, ...]) -> None:
        for (layer, keys, _, positions), error in zip(seen, errors, strict=True):
            for key, value, position in zip(keys, error, positions.tolist(), strict=True):
                padded = layer == "embedding" and self.padding is not None and bool(key[self.padding])
                self.slots[layer].keys.append(key)
                self.slots[layer].values.append(torch.zeros_like(value) if padded else value)
                self.slots[layer].positions.append(position)

    def initial_of(self, layer: str) -> dict[str, Tensor]:
        """A layer's parameters as they were at the beginning."""
        if not layer.startswith("lstm."):
            return {name: p for name, p in self.initial.items() if name.startswith(layer)}
        return {name: p for name, p in self.initial.items() if name.endswith(layer.rpartition(".")[2])}

    def map(self, layer: str, lr: float, wanted: set[int]) -> Tensor:
        """The change of a layer's map by the tokens at some positions: (d_out, d_in)."""
        slots = self.slots[layer]
        total = torch.zeros(len(slots.values[0]), len(slots.keys[0])).double()
        for key, value, position in zip(slots.keys, slots.values, slots.positions, strict=True):
            if position in wanted:
                total -= lr * torch.outer(value, key)
        return total
