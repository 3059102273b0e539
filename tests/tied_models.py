"""Models with tied weights, and a dense reference of their training that has a weight for each use.

The reference knows nothing of keys, values or hooks: `functional` calls a model with a weight of its own for each use,
so that autograd has a gradient for each; tests/dense.py follows the pieces that these are summed up to.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.store import InMemory
from tests.dense import Dense, Piece

WORDS, UNITS, CLASSES, LABELS = 7, 4, 3, 3
Weights = dict[tuple[str, str], Tensor]  # by layer and what its module calls it


class Model(nn.Module):
    """Layers that are called by name, so that the reference can call them with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: Weights | None = None  # None: the modules' own

    def call(self, name: str, inputs: Tensor) -> Tensor:
        module = self.get_submodule(name)
        if self.weights is None:
            output: Tensor = module(inputs)
            return output
        weight, bias = self.weights[name, "weight"], self.weights.get((name, "bias"))
        return F.embedding(inputs, weight) if isinstance(module, nn.Embedding) else F.linear(inputs, weight, bias)

    def uses(self) -> Weights:
        """The weights of each use."""
        layers = [(n, m) for n, m in self.named_modules() if isinstance(m, nn.Linear | nn.Embedding)]
        return {(name, own): p for name, module in layers for own, p in module.named_parameters(remove_duplicate=False)}


class Language(Model):
    """The next word by the one before; the head is the embedding."""

    def __init__(self, bias: bool = False, head_first: bool = False, units: int = UNITS) -> None:
        super().__init__()
        if head_first:  # whoever comes first looks at the gradient
            self.head = nn.Linear(units, WORDS, bias=bias)
        self.wte = nn.Embedding(WORDS, units)
        self.mid = nn.Linear(units, units)
        if not head_first:
            self.head = nn.Linear(units, WORDS, bias=bias)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.call("head", torch.tanh(self.call("mid", self.call("wte", ids))))


class TwoEmbeddings(Model):
    """Two embeddings and a head: three uses of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(WORDS, UNITS), nn.Embedding(WORDS, UNITS)
        self.head = nn.Linear(UNITS, WORDS)
        self.decoder.weight = self.head.weight = self.encoder.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.call("encoder", ids) * torch.tanh(self.call("decoder", (ids + 1) % WORDS))
        return self.call("head", hidden)


class Chain(Model):
    """A shares its weight with B, and B its bias with C."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(WORDS, UNITS)
        self.a, self.b = nn.Linear(UNITS, UNITS, bias=False), nn.Linear(UNITS, UNITS)
        self.c = nn.Linear(UNITS, UNITS)
        self.head = nn.Linear(UNITS, WORDS)
        self.b.weight, self.c.bias = self.a.weight, self.b.bias

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.tanh(self.call("a", self.call("wte", ids)))
        hidden = torch.tanh(self.call("b", hidden))
        return self.call("head", torch.tanh(self.call("c", hidden)))


MODELS: dict[str, Callable[[], Model]] = {
    "head": Language,
    "head with a bias": lambda: Language(bias=True),
    "head first": lambda: Language(bias=True, head_first=True),
    "as many words as units": lambda: Language(units=WORDS),
    "three uses": TwoEmbeddings,
    "a chain": Chain,
}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05}),
    "Adam": ("Adam", {"lr": 0.02, "weight_decay": 0.05}),
    "AdamW": ("AdamW", {"lr": 0.02, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {"lr": 0.1}),
}


@dataclass
class Trained:
    """A recorded training, and its dense reference, split by layer and label."""

    model: Model
    memory: dualform.Memory
    reference: Dense
    names: dict[tuple[str, str], str]  # of the parameter of each use
    states: list[dict[str, Tensor]] = field(default_factory=list)  # after 0, 1, ... steps

    def muted(self, name: str, *muted: tuple[str, int]) -> Tensor:
        """A parameter of the dense loop, had these layers and labels not been in its gradients."""
        pieces = self.reference.pieces[name]
        kept: list[Piece] = [piece for tag, piece in pieces.items() if tag not in muted]
        return torch.stack([piece.weight for piece in kept]).sum(dim=0)


def trained(model: str, optimizer: str, steps: int = 6, clip: float = 0.3, accumulate: int = 2) -> Trained:
    """Train with clipping and accumulation, in several chapters, and follow it by a dense loop."""
    torch.manual_seed(0)
    network, run = MODELS[model]().double(), InMemory()
    kind, options = OPTIMIZERS[optimizer]
    stepper = getattr(torch.optim, kind)(network.parameters(), **options)
    parameters = dict(network.named_parameters())
    names = {use: name for use, own in network.uses().items() for name, p in parameters.items() if p is own}
    result = Trained(network, None, Dense(network, kind), names)  # type: ignore[arg-type]
    result.states.append({name: p.detach().clone() for name, p in parameters.items()})
    with dualform.record(network, stepper, run, dtype="float64") as recorder:
        for number in range(steps):
            gradients: dict[str, dict[Any, Tensor]] = {name: {} for name in parameters}
            stepper.zero_grad()
            for _ in range(accumulate):
                ids, targets, labels = torch.randint(WORDS, (5,)), torch.randint(WORDS, (5,)), torch.arange(5) % LABELS
                recorder.tag(label=labels)
                F.cross_entropy(network(ids), targets).backward()
                _add_gradients(result, ids, targets, labels, gradients)
            norm = float(nn.utils.clip_grad_norm_(network.parameters(), clip))
            scale = min(1.0, clip / (norm + 1e-6))
            scaled = {n: {tag: scale * g for tag, g in by_tag.items()} for n, by_tag in gradients.items()}
            result.reference.step(scaled, {name: dict(stepper.param_groups[0]) for name in parameters})
            stepper.step()
            result.states.append({name: p.detach().clone() for name, p in parameters.items()})
            if number in (1, 3):
                recorder.sync()
    assert not recorder.skipped
    result.memory = dualform.load(run)
    return result


def _add_gradients(
    run: Trained, ids: Tensor, targets: Tensor, labels: Tensor, gradients: dict[str, dict[Any, Tensor]]
) -> None:
    """Add the gradient of each use, example by example."""
    for word, target, label in zip(ids, targets, labels.tolist(), strict=True):
        apart = {use: weight.detach().clone().requires_grad_() for use, weight in run.model.uses().items()}
        run.model.weights = apart
        loss = F.cross_entropy(run.model(word[None]), target[None]) / len(ids)
        run.model.weights = None
        for use, gradient in zip(apart, torch.autograd.grad(loss, [*apart.values()]), strict=True):
            by_tag, tag = gradients[run.names[use]], (use[0], label)
            by_tag[tag] = by_tag.get(tag, torch.zeros_like(gradient)) + gradient
