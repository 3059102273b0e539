"""Plans as the library itself makes them, caught on their way to the engine; and answers made comparable.

    plans = caught(lambda: memory.attend({"0": queries})["0"].top(3))

A plan that was caught is empty: it can be carried out any number of times, by `carried_out`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dualform.attention.folds import TotalFold, Visits
from dualform.attention.totals import KeyCountFold, KeySumFold
from dualform.engine import Plan, carry_out
from dualform.table import Table


def caught(ask: Callable[[], object]) -> list[Plan]:
    """Every plan that is carried out while something is asked."""
    plans: list[Plan] = []

    def catching(plan: Plan, *arguments: Any) -> list[Any]:
        plans.append(empty(plan))
        return carry_out(plan, *arguments)

    with engine(catching):
        ask()
    return plans


@contextmanager
def engine(instead: Callable[..., list[Any]]) -> Iterator[None]:
    """Let something else carry out the plans of all rooms."""
    rooms = [module for name, module in sys.modules.items() if name.startswith("dualform.")]
    with pytest.MonkeyPatch.context() as patch:
        for room in rooms:
            if getattr(room, "carry_out", None) is carry_out:
                patch.setattr(room, "carry_out", instead)
        yield


def empty(plan: Plan) -> Plan:
    """The plan with folds of its own, since to carry it out feeds them."""
    return replace(plan, folds=deepcopy(plan.folds))


def carried_out(plan: Plan, *arguments: Any) -> Any:
    return plain(carry_out(empty(plan), *arguments))


def merged(plan: Plan, parts: Sequence[Sequence[int]]) -> Any:
    """The answers of a plan whose chapters were dealt to parts, which are merged in this order."""
    whole = empty(plan).folds
    for chapters in parts:
        for fold, other in zip(whole, plan.feed_copy(chapters), strict=True):
            fold.merge(other)
    return plain([fold.finish() for fold in whole])


def plain(answer: Any) -> Any:
    """An answer as lists, dictionaries and tensors."""
    if isinstance(answer, TotalFold):
        return {"totals": answer.totals, "visits": plain(answer.visits)}
    if isinstance(answer, KeySumFold | KeyCountFold):
        queries = torch.eye(answer.d_in, dtype=torch.float64)
        return {"totals": answer.totals(queries), "nonnegative": getattr(answer, "nonnegative", None)}
    if isinstance(answer, Visits):
        return dict(vars(answer))
    if is_dataclass(answer):
        return {field.name: plain(getattr(answer, field.name)) for field in fields(answer)}
    if hasattr(answer, "keys") and hasattr(answer, "visits"):  # examples
        return {"keys": answer.keys.rows, "visits": plain(answer.visits)}
    if isinstance(answer, Mapping):
        return {key: plain(value) for key, value in answer.items()}
    if isinstance(answer, Table):
        return answer.as_arrays()
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    return answer


def assert_same(found: Any, expected: Any) -> None:
    """Whole numbers to be the same, sums to be close."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs)
    elif isinstance(expected, Tensor | np.ndarray):
        _assert_same_numbers(np.asarray(found), np.asarray(expected))
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    else:
        assert found == expected


def _assert_same_numbers(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max(initial=0.0))
    else:
        np.testing.assert_array_equal(found, expected)
