"""Slots that are made again are those that would have been stored, in every byte, and so are all answers."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dualform
from tests.recipe.answers import answers, assert_close, run_of, slots_by_chapter, totals
from tests.recipe.trainings import TASKS, assert_same_state, recipe_of

SGD = st.tuples(
    st.just("SGD"),
    st.fixed_dictionaries({
        "lr": st.sampled_from([0.03, 0.1]), "momentum": st.sampled_from([0.5, 0.9]), "nesterov": st.booleans(),
        "weight_decay": st.sampled_from([0.0, 0.05]),
    }),
)  # fmt: skip
ADAM = st.tuples(
    st.sampled_from(["Adam", "AdamW"]),
    st.fixed_dictionaries({
        "lr": st.just(0.01), "betas": st.sampled_from([(0.9, 0.99), (0.5, 0.9)]),
        "weight_decay": st.sampled_from([0.0, 0.05]), "amsgrad": st.booleans(),
    }),
)  # fmt: skip
OTHERS = st.sampled_from([("SGD+Adam", {"lr": 0.1}), ("Muon+SGD", {"lr": 0.05})])
SCHEDULES = [None, lambda step: 1 / (1 + step), lambda step: float(step % 3)]


@st.composite
def trainings(draw: st.DrawFn) -> tuple[dualform.Recipe, dict[str, Any]]:
    """A recipe, and how it is recorded."""
    task = draw(st.sampled_from([*TASKS]))
    optimizer, options = draw(st.one_of(SGD, ADAM, OTHERS))
    if options.get("nesterov") and not options["momentum"]:
        options["nesterov"] = False
    entries = {
        "clip": draw(st.sampled_from([None, 0.05, 1e6])),
        "accumulate": 1 if task == "carried" else draw(st.sampled_from([1, 2, 3])),
        "schedule": draw(st.sampled_from(SCHEDULES)),
        "seed": draw(st.integers(0, 3)),
        "autocast": draw(st.sampled_from([None, None, torch.bfloat16])),
    }
    recorded = {
        "every": draw(st.sampled_from([1, 3, 4, 100])),
        "dtype": draw(st.sampled_from([None, "float16", "float64"])),
    }
    return recipe_of(task, optimizer, options, **entries), recorded


@pytest.mark.slow
@given(training=trainings(), steps=st.integers(1, 8))
def test_slots_made_again_are_those_that_are_stored(
    training: tuple[dualform.Recipe, dict[str, Any]], steps: int
) -> None:
    recipe, options = training
    with TemporaryDirectory() as path:
        kept, made = Path(path) / "kept", Path(path) / "made"
        ends = [
            recipe.train(where, steps, **{**options, "keep": keep})
            for where, keep in ((kept, "slots"), (made, "snapshots"))
        ]
        assert_same_state(ends[1], ends[0])
        memories = [dualform.load(kept), dualform.load(made, recipe), dualform.load(made, recipe, cache=0)]
        expected = slots_by_chapter(run_of(kept))
        for cache in (1 << 30, 0):
            assert slots_by_chapter(run_of(made, recipe, cache)) == expected
        certificates = [memory.verify().ok for memory in memories]
        assert certificates[1:] == certificates[:1] * 2


CASES = [
    ("mlp", "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"clip": 0.5}),
    ("mlp", "AdamW", {"lr": 0.01}, {"schedule": lambda step: 1 / (1 + step)}),
    ("dropout", "Adam", {"lr": 0.01}, {"accumulate": 2}),
    ("conv", "SGD", {"lr": 0.1, "momentum": 0.9}, {"clip": 0.5}),
    ("conv", "AdamW", {"lr": 0.01}, {}),
    ("words", "Adam", {"lr": 0.01}, {}),
    ("lstm", "SGD", {"lr": 0.1}, {"accumulate": 3}),
    ("carried", "AdamW", {"lr": 0.01}, {"clip": 1.0}),
    ("mlp", "Muon+SGD", {"lr": 0.05}, {}),
    ("mlp", "SGD+Adam", {"lr": 0.1}, {}),
]  # fmt: skip
IN_PARTS = [("mlp", "SGD"), ("carried", "AdamW")]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "optimizer", "options", "entries"), CASES)
def test_every_answer(
    task: str, optimizer: str, options: dict[str, Any], entries: dict[str, Any], tmp_path: Path
) -> None:
    recipe = recipe_of(task, optimizer, options, **entries)
    first = "0" if task in ("mlp", "dropout", "conv") else "words" if task == "words" else "lstm.*"
    model = recipe.train(tmp_path / "kept", 9, every=4, dtype="float64")
    recipe.train(tmp_path / "made", 9, every=4, dtype="float64", keep="snapshots")
    recipe.train(tmp_path / "mixed", 9, every=4, dtype="float64", keep={first: "slots", "*": "snapshots"})
    kept = dualform.load(tmp_path / "kept")
    expected, slots = answers(kept, model), slots_by_chapter(run_of(tmp_path / "kept"))
    memory = dualform.load(tmp_path / "made", recipe)
    assert slots_by_chapter(run_of(tmp_path / "made", recipe)) == slots
    assert memory.verify().ok
    assert_close(answers(memory, model), expected, 1e-12)
    mixed = dualform.load(tmp_path / "mixed", recipe)
    # what a clipped gradient was scaled by is estimated from the layers that are looked at together
    assert without_factors(slots_by_chapter(run_of(tmp_path / "mixed", recipe))) == without_factors(slots)
    assert mixed.verify().ok
    assert_close(totals(answers(mixed, model)), totals(expected), 1e-6 if "clip" in entries else 1e-12)
    in_parts = dualform.load(tmp_path / "made", recipe, cache=2000)
    assert len(run_of(tmp_path / "made", recipe, 2000).slot_shards(memory.layers[0])) > 3
    assert in_parts.verify().ok
    assert slots_by_chapter(run_of(tmp_path / "made", recipe, 2000)) == slots
    if (task, optimizer) in IN_PARTS:  # sums of parts are in another order, and so may be slots that score the same
        assert_close(totals(answers(in_parts, model)), totals(expected), 1e-12)
    assert "to the last bit" in in_parts.notes[-1]
    if optimizer != "Muon+SGD":  # whose remainders are as large
        assert run_of(tmp_path / "made").nbytes < run_of(tmp_path / "kept").nbytes


def without_factors(slots: dict[tuple[str, int, str], bytes]) -> dict[tuple[str, int, str], bytes]:
    return {name: column for name, column in slots.items() if "factors" not in name}


def test_parts_are_asked_for_in_any_order(tmp_path: Path) -> None:
    recipe = recipe_of("conv", "AdamW", {"lr": 0.01})
    recipe.train(tmp_path / "kept", 12, every=4)
    recipe.train(tmp_path / "made", 12, every=4, keep="snapshots")
    kept = dualform.load(tmp_path / "kept")
    for cache in (0, 5000, "1 GB"):
        memory = dualform.load(tmp_path / "made", recipe, cache=cache)
        for step in (11, 0, 5, 6, 4, 10, 3, 7):
            at = [one.where(step=step).added("0")["0.weight"] for one in (memory, kept)]
            torch.testing.assert_close(at[0], at[1], rtol=1e-12, atol=1e-12)


def test_a_shared_parameter_is_stored_by_all_its_layers_or_by_none(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.words(tokens).mean(1))
            return out

    recipe = recipe_of(model=Tied, losses=TASKS["words"].losses)
    model = recipe.train(tmp_path / "kept", 6, every=4, dtype="float64")
    recipe.train(tmp_path / "mixed", 6, every=4, dtype="float64", keep={"words": "slots", "*": "snapshots"})
    assert not any(layer.stored for layer in dualform.store.Run(tmp_path / "mixed").manifest.layers)
    memory = dualform.load(tmp_path / "mixed", recipe)
    assert memory.verify().ok
    assert_close(answers(memory, model), answers(dualform.load(tmp_path / "kept"), model), 1e-12)


def test_another_process_makes_the_same_slots(tmp_path: Path) -> None:
    """Which takes its random numbers, and as many threads, from the run."""
    command = [sys.executable, "-m", "tests.recipe.elsewhere", str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    for task in ("dropout", "carried"):
        recipe = recipe_of(task, "AdamW", {"lr": 0.01})
        memory = dualform.load(tmp_path / f"{task}-made", recipe)
        made, kept = run_of(tmp_path / f"{task}-made", recipe), run_of(tmp_path / f"{task}-kept")
        assert slots_by_chapter(made) == slots_by_chapter(kept)
        assert memory.verify().ok
        assert "to the last bit" in memory.notes[-1]
        whole = recipe.train(tmp_path / f"{task}-whole", 9, threads=1)
        assert_same_state(recipe.train(tmp_path / f"{task}-made", 9, every=4, keep="snapshots"), whole)
