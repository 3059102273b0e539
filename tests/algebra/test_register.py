"""Optimisers that are not torch's, registered from outside: with names of their own for everything, and exact."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.testing import assert_close

import dualform
from dualform.algebra import Line, Moments, Rule, Step, known, register, rule_named, unregister
from dualform.errors import RecordingError, RunError
from tests.dense import example_gradients

STEPS, EXAMPLES, CLASSES = 20, 12, 3


class Descent(Optimizer):
    """W' = W - pace G"""

    def __init__(self, parameters: Any, pace: float = 0.1) -> None:
        super().__init__(parameters, {"pace": pace})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["pace"] * parameter.grad


class Cautious(Optimizer):
    """W' = W - pace drift' / (1 + sqrt(energy')), uphill

    with g = -G + pull W, energy' = energy + g^2 and drift' = inertia drift + g.
    """

    def __init__(self, parameters: Any, pace: float = 0.02, pull: float = 0.1, inertia: float = 0.5) -> None:
        super().__init__(parameters, {"pace": pace, "pull": pull, "inertia": inertia})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                state, g = self.state[parameter], group["pull"] * parameter - parameter.grad
                state["energy"] = state.get("energy", 0.0) + g.square()
                state["drift"] = group["inertia"] * state.get("drift", 0.0) + g
                parameter -= group["pace"] * state["drift"] / (1 + state["energy"].sqrt())


DESCENT = Rule(
    columns=("pace",),
    read=lambda group, state: (group["pace"],),
    step=lambda line, moments: Step(alpha=line["pace"]),
    momentum=None,
)

OPTIONS = ("pace", "pull", "inertia")


def _read(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(group[name] for name in OPTIONS)


def _advance(line: Line, gradient: Tensor, moments: Moments) -> Moments:
    return {"energy": gradient.square() + moments.get("energy", torch.zeros_like(gradient))}


def _step(line: Line, moments: Moments) -> Step:
    scale = line["pace"] / (1 + moments["energy"].sqrt())
    return Step(sign=-1.0, decay=line["pull"], carry=line["inertia"], intake=1.0, beta=scale)


CAUTIOUS = Rule(
    columns=OPTIONS,
    read=_read,
    step=_step,
    momentum="drift",
    moments=("energy",),
    advance=_advance,
    sign=lambda line: -1.0,
    decay=lambda line: float(line["pull"]),
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(Descent, DESCENT)
    register(Cautious, CAUTIOUS)
    yield
    unregister(Descent)
    unregister(Cautious)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def batches() -> Iterator[tuple[list[int], Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(EXAMPLES, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    for _ in range(STEPS):
        ids = torch.randperm(EXAMPLES, generator=generator)[:6].tolist()
        yield ids, inputs[ids], labels[ids]


def recorded(kind: type[Descent] | type[Cautious], path: Path) -> tuple[nn.Sequential, dualform.Memory]:
    model = network()
    optimizer = kind(model.parameters())
    with dualform.record(model, optimizer, path, dtype="float64") as recorder:
        for ids, inputs, labels in batches():
            recorder.tag(id=ids)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model, dualform.load(path)


def without(kind: type[Descent] | type[Cautious], muted: int) -> dict[str, Tensor]:
    """A dense loop: every weight as the part that one example has made of it, and the rest; returns the rest."""
    model, options = network(), kind(nn.Linear(1, 1).parameters()).param_groups[0]
    whole = {name: p.detach() for name, p in model.named_parameters()}
    parts = {name: [p.clone(), torch.zeros_like(p)] for name, p in whole.items()}  # weight: rest, muted
    drifts = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in whole.items()}
    energy = {name: torch.zeros_like(p) for name, p in whole.items()}
    for ids, inputs, labels in batches():
        gradients = example_gradients(model, inputs, labels, ids, 1.0)
        for name, by_example in gradients.items():
            zero = torch.zeros_like(whole[name])
            split = [sum((g for i, g in by_example.items() if (i == muted) == part), zero) for part in (False, True)]
            if kind is Cautious:
                split = [options["pull"] * weight - g for weight, g in zip(parts[name], split, strict=True)]
                energy[name] += (split[0] + split[1]).square()
                split = [options["inertia"] * before + g for before, g in zip(drifts[name], split, strict=True)]
                drifts[name] = split
            scale = options["pace"] / (1 + energy[name].sqrt())
            parts[name] = [weight - scale * g for weight, g in zip(parts[name], split, strict=True)]
            whole[name].copy_(parts[name][0] + parts[name][1])
    return {name: rest for name, (rest, _) in parts.items()}


@pytest.mark.parametrize("kind", [Descent, Cautious])
def test_a_registered_optimiser_is_certified_and_muted_right(
    kind: type[Descent] | type[Cautious], tmp_path: Path
) -> None:
    model, memory = recorded(kind, tmp_path / "run")
    certificate = memory.verify()
    assert certificate.ok, str(certificate)
    muted = memory.without(id=3)
    expected = without(kind, muted=3)
    for layer in memory.layers:
        for name, weight in memory.weights(layer).items():
            assert_close(weight, dict(model.named_parameters())[name].detach(), rtol=1e-9, atol=1e-9)
        for name, weight in muted.weights(layer).items():
            assert_close(weight, expected[name], rtol=1e-9, atol=1e-9)


def test_a_manifest_names_it_in_full(tmp_path: Path) -> None:
    recorded(Descent, tmp_path / "run")
    name = f"{__name__}.Descent"
    assert rule_named(name) is DESCENT
    assert name in known()
    assert f'"kind": "{name}"' in (tmp_path / "run" / "manifest.json").read_text()


def test_reading_needs_it_registered(tmp_path: Path) -> None:
    recorded(Descent, tmp_path / "run")
    unregister(Descent)
    try:
        with pytest.raises(RunError, match="Descent"):
            dualform.load(tmp_path / "run").verify()
    finally:
        register(Descent, DESCENT)


def test_a_subclass_counts_as_its_base_unless_it_steps_otherwise(tmp_path: Path) -> None:
    class Renamed(Descent):
        pass

    class Other(Descent):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()

    _, memory = recorded(Renamed, tmp_path / "run")
    assert memory.verify().ok
    with pytest.raises(RecordingError, match=r"Other overrides the step of tests\.algebra\.test_register\.Descent"):
        recorded(Other, tmp_path / "other")


def test_the_page_shows_the_lion_that_is_tested() -> None:
    root = Path(__file__).parents[2]
    lion = (root / "tests" / "lion.py").read_text(encoding="utf-8").partition("\n\n")[2]
    assert lion in (root / "docs" / "guides" / "optimisers.md").read_text(encoding="utf-8")
