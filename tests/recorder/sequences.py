"""A language model, and the same one unrolled token by token with everything in view: the naive reference."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualform.nn import LSTM

VOCABULARY, WIDTH, HIDDEN = 7, 3, 4


@dataclass(frozen=True)
class Shape:
    """Of a model: how its sequences lie, and what its layers have."""

    batch_first: bool = True
    padding: int | None = None
    layers: int = 2
    bias: bool = True


class Model(nn.Module):
    """LSTM layers between an embedding and a decoder."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=shape.padding)
        self.lstm = LSTM(WIDTH, HIDDEN, shape.layers, bias=shape.bias, batch_first=shape.batch_first)
        self.decoder = nn.Linear(HIDDEN, VOCABULARY, bias=shape.bias)
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
    """The model by hand: every output of every token is a tensor of its own, whose gradient autograd tells."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.slots = {name: Slots() for name in ("embedding", *(f"lstm.l{i}" for i in range(shape.layers)), "decoder")}

    def gradients(self, model: Model, rows: tuple[Tensor, Tensor, Tensor], state: Any) -> dict[str, dict[int, Tensor]]:
        """Of the mean loss over tokens, targets, positions, (time, batch) each: parameter -> position -> gradient."""
        tokens, targets, positions = rows
        parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
        seen: list[tuple[str, Tensor, Tensor, Tensor]] = []  # layer, keys, outputs, positions; a row for each stream
        logits = self._run(parameters, tokens, positions, state, seen)
        loss = F.cross_entropy(logits.flatten(end_dim=1), targets.flatten())
        errors = torch.autograd.grad(loss, [output for _, _, output, _ in seen])
        found: dict[str, dict[int, Tensor]] = {name: {} for name in parameters}
        for (layer, keys, _, at), error in zip(seen, errors, strict=True):
            for key, value, position in zip(keys, error, at.tolist(), strict=True):
                self._add(found, layer, key.detach(), value, position)
        return found

    def _run(self, p: dict[str, Tensor], tokens: Tensor, positions: Tensor, state: Any, seen: list[Any]) -> Tensor:
        """Logits (time, batch, vocabulary), every linear map noted."""
        zeros = torch.zeros(self._shape.layers, tokens.shape[1], HIDDEN).double()
        hidden, cell = ([*one.unbind()] for one in (state or (zeros, zeros)))  # layer -> (batch, hidden)
        logits = []
        for time, batch in enumerate(tokens):
            key = F.one_hot(batch, VOCABULARY).double()
            inputs = key @ p["embedding.weight"]
            seen.append(("embedding", key, inputs, positions[time]))
            for i in range(self._shape.layers):
                key = torch.cat([inputs, hidden[i]], dim=1)
                gates = key @ torch.cat([p[f"lstm.weight_ih_l{i}"], p[f"lstm.weight_hh_l{i}"]], dim=1).mT
                if self._shape.bias:
                    gates = gates + p[f"lstm.bias_ih_l{i}"] + p[f"lstm.bias_hh_l{i}"]
                seen.append((f"lstm.l{i}", key, gates, positions[time]))
                enter, forget, new, leave = gates.chunk(4, dim=1)
                cell[i] = forget.sigmoid() * cell[i] + enter.sigmoid() * new.tanh()
                inputs = hidden[i] = leave.sigmoid() * cell[i].tanh()
            output = inputs @ p["decoder.weight"].mT
            if self._shape.bias:
                output = output + p["decoder.bias"]
            seen.append(("decoder", inputs, output, positions[time]))
            logits.append(output)
        return torch.stack(logits)

    def _add(self, found: dict[str, Any], layer: str, key: Tensor, value: Tensor, position: int) -> None:
        """One token's share of a layer's gradients; torch leaves the padding out of an embedding's."""
        if layer == "embedding" and self._shape.padding is not None and key[self._shape.padding]:
            value = torch.zeros_like(value)
        slots = self.slots[layer]
        slots.keys.append(key)
        slots.values.append(value)
        slots.positions.append(position)
        outer, number = torch.outer(value, key), layer[-1]
        shares = {
            "embedding": {"embedding.weight": outer.T},
            "decoder": {"decoder.weight": outer, "decoder.bias": value},
        }.get(layer) or {
            f"lstm.weight_ih_l{number}": outer[:, :-HIDDEN], f"lstm.weight_hh_l{number}": outer[:, -HIDDEN:],
            f"lstm.bias_ih_l{number}": value, f"lstm.bias_hh_l{number}": value,
        }  # fmt: skip
        for name, share in shares.items():
            if name in found:
                found[name][position] = found[name].get(position, 0) + share
