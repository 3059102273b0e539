"""Ask random questions of random small runs, and compare the answers with those of a loop over the raw files.

    python -m tests.fuzz_questions --seeds 2000

Answers may differ by rounding: by what the precision of the run allows for the sum of the sizes of all products. Slots
may be in another order, or in each other's place, only if their scores are as close as that.
"""

import argparse
import random
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dualform
from dualform import Output, Question, Timeline, Top, Total
from tests.raw_run import RawLayer, RawRun

Array = NDArray[Any]
Check = Callable[[Any], None]


class Tokens(nn.Module):
    """Has rows that belong to no single example: those of the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(5, 4), nn.Embedding(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.head(torch.tanh(self.words(inputs) + self.places(torch.arange(inputs.shape[1]))))
        return hidden


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(5, 3), nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.head(self.lstm(self.words(inputs))[0])
        return hidden


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5, bias=random.random() < 0.7), nn.ReLU(), nn.Linear(5, 3))


class Case:
    """A recorded run, its raw files, and a view of both."""

    def __init__(self, path: Path, seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)
        make = random.choice([plain, plain, Tokens, Recurrent])
        self.adam = random.random() < 0.2
        double = self.adam or random.random() < 0.3
        storage = "float64" if self.adam else random.choice(["float16", "float32", "float64"])
        self.model = dualform.nn.unfuse(make())
        self.model = self.model.double() if double else self.model
        self._record(path, storage, make is not plain)
        self.memory, self.raw = dualform.load(path), RawRun(path)
        self.eps = 2.0**-52 if storage == "float64" else 2.0**-23
        self.until = self.memory.steps
        self.conditions: list[tuple[bool, dict[str, list[Any]]]] = []
        for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
            self._narrow()

    def _optimizer(self) -> torch.optim.Optimizer:
        decay, maximize = random.choice([0.0, 0.1]), random.random() < 0.2
        if self.adam:
            return torch.optim.Adam(self.model.parameters(), lr=0.05, weight_decay=decay, eps=1e-3, maximize=maximize)
        momentum = random.choice([0.0, 0.5, 0.9])
        nesterov = momentum > 0 and random.random() < 0.4
        dampening = random.choice([0.0, 0.3]) if not nesterov else 0.0
        return torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov, dampening=dampening,
            weight_decay=decay, maximize=maximize,
        )  # fmt: skip

    def _record(self, path: Path, storage: str, tokens: bool) -> None:
        dtype, optimizer = next(self.model.parameters()).dtype, self._optimizer()
        pools: dict[str, list[Any]] = {
            "id": [2**53, 2**53 + 1, -7, 0, 300], "mark": [float("nan"), -0.5, 1e300, 2.0, float("inf")],
            "flag": [True, False], "name": ["", "a", "b\0c", "Ω" * 300, "a "],
        }  # fmt: skip
        names = random.sample(sorted(pools), random.randint(1, 4))
        stock = torch.randn(6, 4, dtype=dtype)
        with dualform.record(self.model, optimizer, path, dtype=storage) as recorder:
            for step in range(random.randint(1, 6)):
                batch = random.randint(2, 5)
                columns = {name: [random.choice(pools[name]) for _ in range(batch)] for name in names}
                recorder.tag(**{name: column[0] if name == "flag" else column for name, column in columns.items()})
                inputs = torch.randint(5, (batch, 3)) if tokens else stock[torch.randint(6, (batch,))]
                optimizer.zero_grad()
                self.model(inputs).square().sum().mul(0.1).backward()
                if random.random() < 0.3:
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                optimizer.step()
                if random.random() < 0.3 and step:
                    recorder.sync()

    def _narrow(self) -> None:
        layer = self.raw.layers[random.choice(self.memory.layers)]
        if random.random() < 0.3:
            self.until = random.randint(0, self.until)
            self.memory = self.memory.until(self.until)
            return
        inverted, wanted = random.random() < 0.5, {}
        for name in random.sample([*layer.tags, "step"], random.randint(1, 2)):
            known = layer.steps.tolist() if name == "step" else layer.tags[name]
            wanted[name] = random.sample(known, random.randint(1, min(3, len(known))))
        self.conditions.append((inverted, wanted))
        self.memory = self.memory.without(**wanted) if inverted else self.memory.where(**wanted)

    def chosen(self, layer: RawLayer) -> list[int]:
        """Return the slots of the view, by a loop."""
        slots = []
        for slot, step in enumerate(layer.steps.tolist()):
            facts = {"step": step, **{name: column[slot] for name, column in layer.tags.items()}}
            fits = [
                inverted != all(any(same(facts[name], value) for value in values) for name, values in wanted.items())
                for inverted, wanted in self.conditions
            ]
            if step < self.until and all(fits):
                slots.append(slot)
        return slots


def same(one: Any, other: Any) -> bool:
    return bool(key(one) == key(other))


def key(value: Any) -> Hashable:
    """Return something that equals itself even for NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return "NaN!" if isinstance(value, float) and value != value else value


class LayerCase:
    """The raw answers for some queries to a layer."""

    def __init__(self, case: Case, name: str) -> None:
        self.case, self.name, self.layer = case, name, case.raw.layers[name]
        self.slots = case.chosen(self.layer)
        dtype = torch.float64 if case.eps < 1e-10 else torch.float32
        width = self.layer.keys.shape[1]
        self.queries = torch.randn(random.choice([1, 2, 5]), width, dtype=dtype)
        if random.random() < 0.3:
            self.queries = self.queries.abs()
        queries = self.queries.double().numpy()
        self.weights = self.layer.keys @ queries.T  # (slots, queries)
        rounding = 4 * case.eps * (width + 8)
        self.slack = rounding * (np.abs(self.layer.keys) @ np.abs(queries).T) + 1e-300
        self.responses = [case.raw.responses(use, case.until) for use in self.layer.uses]
        self.direction = torch.randn(self.layer.values.shape[1], dtype=dtype)
        self.contributions, self.contribution_slack = self._contributions(queries)

    def coefficient(self, slot: int, number: int) -> Any:
        """Return R_t: (d_out, width), with the factor of the pass."""
        step = int(self.layer.steps[slot])
        of_steps = self.responses[number][1]
        return of_steps[step] * self.layer.factors[slot, number] if step < len(of_steps) else np.zeros(1)

    def _contributions(self, queries: Array) -> tuple[Array, Array]:
        along, scores = self.direction.double().numpy(), np.zeros((len(self.layer.keys), len(queries)))
        sizes = np.zeros_like(scores)
        for number, use in enumerate(self.layer.uses):
            keys, asked = use.of(self.layer.keys), use.of(queries)
            for slot in self.slots:
                mixed = self.coefficient(slot, number) * np.outer(self.layer.values[slot] * along, keys[slot])
                scores[slot] += asked @ mixed.sum(axis=0)
                sizes[slot] += np.abs(asked) @ np.abs(mixed).sum(axis=0)
        return scores, 64 * self.case.eps * (sum(self.layer.values.shape) + 16) * sizes + 1e-300

    def added(self, number: int, slots: list[int]) -> tuple[Array, Array]:
        """Return what slots have added to a parameter's map, and the sum of sizes."""
        use, shape = self.layer.uses[number], self.responses[number][0].shape
        total, sizes, keys = np.zeros(shape), np.zeros(shape), self.layer.uses[number].of(self.layer.keys)
        for slot in slots:
            part = self.coefficient(slot, number) * np.outer(self.layer.values[slot], keys[slot])
            total, sizes = total + part, sizes + np.abs(part)
        return use.back(total), use.back(sizes)

    def tag(self, name: str, slot: int) -> Hashable:
        return key(self.layer.tags[name][slot])


class Asked:
    """Asks questions of one layer, and compares."""

    def __init__(self, case: Case, name: str, compared: Counter[str]) -> None:
        self.raw, self.case, self.compared = LayerCase(case, name), case, compared
        self.spotlight = case.memory.attend({name: self.raw.queries})[name]

    def all(self) -> None:
        raw, tags = self.raw, list(self.raw.layer.tags)
        by = random.choice([None, random.choice(tags), tuple(random.sample(tags, random.randint(1, len(tags))))])
        per, absolute = random.choice([None, None, *tags]), random.random() < 0.4
        k, bins = random.randint(1, 6), random.randint(1, 7)
        valued = random.random() < 0.3 and not self.case.adam
        for again in range(random.choice([1, 3])):  # from the second on, sums and sketches that were kept
            questions: list[Question] = [
                Top(k, by, per, absolute),
                Total(by, absolute, valued),
                Timeline(bins, absolute, valued),
                Output(),
            ]
            top, total, timeline, output = self.spotlight.collect(*questions)
            self.top(top, k, by, per, absolute, raw.weights, raw.slack, f"top {again}")
            strength = self.strengths() if valued else np.ones(len(raw.layer.keys))
            weights = (np.abs(raw.weights) if absolute else raw.weights) * strength[:, None]
            slack = (raw.slack + 8 * self.case.eps * np.abs(raw.weights)) * strength[:, None] * (len(raw.slots) + 4)
            self.total(total, by, weights, slack, "total")
            self.timeline(timeline, bins, weights, slack)
            self.output(output)
        contribution = self.spotlight.contribution(raw.direction)
        scores, slack = raw.contributions, raw.contribution_slack
        self.top(contribution.top(k, by, per, absolute), k, by, per, absolute, scores, slack, "contribution top")
        self.total(contribution.total(by), by, scores, slack * (len(raw.slots) + 4), "contribution total")
        self.visits(by or tags[0])
        self.parameters(by or tags[0])

    def strengths(self) -> Array:
        layer = self.raw.layer
        sizes = np.linalg.norm(layer.values, axis=1)
        known = {slot: abs(float(np.max(np.abs(self.raw.coefficient(slot, 0))))) for slot in self.raw.slots}
        return np.array([known.get(slot, 0.0) * size for slot, size in enumerate(sizes)])

    def groups(self, by: Any, slots: list[int]) -> dict[Any, list[int]]:
        names = () if by is None else (by,) if isinstance(by, str) else by
        groups: dict[Any, list[int]] = defaultdict(list)
        for slot in slots:
            groups[tuple(self.raw.tag(name, slot) for name in names)].append(slot)
        return groups

    def top(
        self, table: Any, k: int, by: Any, per: str | None, absolute: bool, scores: Array, slack: Array, what: str
    ) -> None:
        names = () if by is None else (by,) if isinstance(by, str) else by
        merged = self.groups((per, *names) if per else None, self.raw.slots)
        units = merged if per else {(slot,): [slot] for slot in self.raw.slots}
        sizes = np.abs(scores) if absolute else scores
        rows = list(table.rows())
        for query in range(scores.shape[1]):
            cells: dict[Any, dict[Any, list[int]]] = defaultdict(dict)
            for name, slots in units.items():
                cells[tuple(self.raw.tag(tag, slots[0]) for tag in names)][name] = slots
            answers: dict[Any, list[dict[str, Any]]] = defaultdict(list)
            for row in rows:
                if row["query"] == query:
                    answers[tuple(key(row[tag]) for tag in names)].append(row)
            assert answers.keys() == cells.keys(), f"{what}: groups {answers.keys() ^ cells.keys()}"
            for cell, in_cell in cells.items():
                members: dict[Any, list[int]] = in_cell
                want = {name: sum(sizes[slot, query] for slot in slots) for name, slots in members.items()}
                off = {
                    name: sum(slack[slot, query] for slot in slots) * (len(slots) + 1)
                    for name, slots in members.items()
                }
                given: dict[Any, float] = {}
                for row in answers[cell]:
                    name = (key(row[per]), *cell) if per else (row["slot"],)
                    assert name in members, f"{what}: {name} is not in {cell}"
                    assert name not in given, f"{what}: {name} comes twice"
                    given[name] = row["score"]
                    assert row["slot"] == members[name][0], f"{what}: first slot"
                    assert row["step"] == self.raw.layer.steps[row["slot"]], f"{what}: step"
                    assert all(same(row[t], c[row["slot"]]) for t, c in self.raw.layer.tags.items()), f"{what}: tags"
                    assert abs(row["score"] - want[name]) <= off[name], f"{what}: score {row['score']} not {want[name]}"
                    if per:
                        assert row["visits"] == len(members[name]), f"{what}: visits"
                assert len(given) == min(k, len(members)), f"{what}: {len(given)} of {len(members)}"
                assert list(given.values()) == sorted(given.values(), reverse=True), f"{what}: order"
                last = min(given, key=lambda name: given[name])
                for name in members.keys() - given.keys():
                    assert want[name] <= want[last] + off[name] + off[last], f"{what}: {name} left out"
                self.compared[what.split()[0]] += len(given)

    def total(self, table: Any, by: Any, scores: Array, slack: Array, what: str) -> None:
        groups = self.groups(by, self.raw.slots)
        every = self.groups(by, list(range(len(self.raw.layer.steps))))
        names = () if by is None else (by,) if isinstance(by, str) else by
        assert len(table) == len(every) * scores.shape[1], f"{what}: {len(table)} rows"
        for row in table.rows():
            slots = groups.get(tuple(key(row[name]) for name in dict.fromkeys(names)), [])
            self.close(row["total"], scores[slots, row["query"]].sum(), slack[slots, row["query"]].sum(), what)

    def timeline(self, table: Any, bins: int, scores: Array, slack: Array) -> None:
        assert len(table) == bins * scores.shape[1], "timeline: rows"
        for row in table.rows():
            steps = self.raw.layer.steps
            slots = [slot for slot in self.raw.slots if row["first_step"] <= steps[slot] < row["last_step"]]
            self.close(row["total"], scores[slots, row["query"]].sum(), slack[slots, row["query"]].sum(), "timeline")

    def output(self, output: Tensor) -> None:
        expected, sizes, queries = 0.0, 0.0, self.raw.queries.double().numpy()
        for number, use in enumerate(self.raw.layer.uses):
            initial, asked = self.raw.responses[number][0], use.of(queries)
            added, off = self.raw.added(number, self.raw.slots)
            expected = expected + asked @ (initial + use.map(added)).T
            sizes = sizes + np.abs(asked) @ (np.abs(initial) + use.map(off)).T
        self.close(output.double().numpy(), expected, self.scale * sizes, "output")

    @property
    def scale(self) -> float:
        return 64 * self.case.eps * (sum(self.raw.layer.values.shape) + 16)

    def parameters(self, by: Any) -> None:
        memory, name = self.case.memory, self.raw.name
        weights, added, of_groups = memory.weights(name), memory.added(name), memory.group_weights(by)
        for number, use in enumerate(self.raw.layer.uses):
            initial, (expected, sizes) = use.back(self.raw.responses[number][0]), self.raw.added(number, self.raw.slots)
            self.close(added[use.name].double().numpy(), expected, self.scale * sizes, "added")
            single = self.scale + 2 * torch.finfo(weights[use.name].dtype).eps
            off = single * (sizes + np.abs(initial))
            self.close(weights[use.name].double().numpy(), initial + expected, off, "weights")
            groups = self.groups(by, self.raw.slots)
            names = (by,) if isinstance(by, str) else by
            for place, row in enumerate(of_groups.groups.rows()):
                slots = groups.get(tuple(key(row[tag]) for tag in names), [])
                expected, sizes = self.raw.added(number, slots)
                got = of_groups.added(name, [place])[use.name].double().numpy()
                self.close(got, expected, single * sizes, "group weights")  # kept in the precision of the parameter

    def visits(self, by: Any) -> None:
        names, table = (by,) if isinstance(by, str) else by, self.case.memory.visits(self.raw.name, by)
        groups, steps = self.groups(by, self.raw.slots), self.raw.layer.steps
        expected = {name: (len(s), min(steps[s]), max(steps[s])) for name, s in groups.items()}
        rows = {
            tuple(key(row[n]) for n in names): (row["visits"], row["first_step"], row["last_step"])
            for row in table.rows()
        }
        assert rows == expected, f"visits: {rows} not {expected}"
        self.compared["visits"] += len(rows)

    def close(self, got: Any, expected: Any, slack: Any, what: str) -> None:
        off = np.abs(np.asarray(got) - expected)
        assert np.all(off <= slack + 1e-300), (
            f"{what}: {got} not {expected}, off by {np.max(off)}, allowed {np.max(slack)}"
        )
        self.compared[what.split()[0]] += np.asarray(got).size


def compare(seed: int) -> Counter[str]:
    """Compare the answers of one random run; returns how many there were of each kind."""
    compared: Counter[str] = Counter()
    with TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = Case(Path(directory) / "run", seed)
        for name in case.memory.layers:
            Asked(case, name, compared).all()
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    compared, mismatches = Counter[str](), 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            compared += compare(seed)
        except Exception as error:
            mismatches += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    print(f"{sum(compared.values()):,} answers compared ({dict(compared)}), {mismatches} unexplained mismatches")
    sys.exit(1 if mismatches else 0)


if __name__ == "__main__":
    main()
