"""The seams: what a layer is a kind of, and what an optimiser divides by, is asked in one room each.

Read from the source as Python reads it, not as text. Each rule is a row: what it looks for, where that may be, and a
snippet that breaks it.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import dualform

PACKAGE = Path(dualform.__file__).parent
KINDS = ("Linear", "Embedding", "LSTM", "GRU", "RNN", "Attention")
MODULES = (*KINDS, "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention")
OF_KINDS = ("kinds/", "nn.py", "nn/", "store/schema.py")

Finds = Callable[[ast.AST], bool]


@dataclass(frozen=True)
class Rule:
    """What must not be found outside of some files, or directories."""

    finds: Finds
    allowed: tuple[str, ...]
    broken: tuple[str, ...]  # snippets it finds something in
    kept: tuple[str, ...]  # and such as look alike


def named(*names: str) -> Finds:
    """Anything of this name: an attribute, a variable, a function, an argument, an import."""
    return lambda node: any(getattr(node, field, None) in names for field in ("attr", "id", "name", "arg"))


def compares_kind(node: ast.AST) -> bool:
    """`layer.kind == "Linear"`, `layer.kind in (...)`, and a match of it."""
    if isinstance(node, ast.Match):
        of_kind = isinstance(node.subject, ast.Attribute) and node.subject.attr == "kind"
        return of_kind and any(_says_kind(one) for case in node.cases for one in ast.walk(case.pattern))
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    of_kind = any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)
    return of_kind and any(_says_kind(one) for side in sides for one in ast.walk(side))


def _says_kind(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in KINDS


def asks_for_columns(node: ast.AST) -> bool:
    """`use.columns is None`, or is not."""
    if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)):
        return False
    left, right = node.left, node.comparators[0]
    none = isinstance(right, ast.Constant) and right.value is None
    return none and isinstance(left, ast.Attribute) and left.attr == "columns"


def asks_for_module(node: ast.AST) -> bool:
    """`isinstance(module, nn.Linear)`, alone or among others."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2):
        return False
    return node.func.id in ("isinstance", "issubclass") and any(map(named(*MODULES), ast.walk(node.args[1])))


RULES = {
    "nothing compares a layer's kind": Rule(
        compares_kind,
        OF_KINDS,
        broken=(
            "layer.kind == 'Linear'",
            "'LSTM' != self.layer.kind",
            "one.kind in ('Embedding', 'Other')",
            "match layer.kind:\n    case 'Linear' | 'LSTM': pass",
        ),
        kept=("optimizer.kind == 'SGD'", "exhibit.kind == 'image'", "name == 'Linear'", "column.dtype.kind in 'US'"),
    ),
    "no key is one-hot by a special case": Rule(
        named("one_hot"),
        OF_KINDS,
        broken=("layer.one_hot", "one_hot(index)", "from torch.nn.functional import one_hot"),
        kept=("'one_hot'",),
    ),
    "no parameter is a bias by a special case": Rule(
        named("is_bias"),
        OF_KINDS,
        broken=("use.is_bias", "is_bias = True", "def is_bias(): pass", "f(is_bias=1)"),
        kept=("# is_bias\n1",),
    ),
    "nothing asks whether a use has columns": Rule(
        asks_for_columns,
        OF_KINDS,
        broken=("use.columns is None", "a = 1 if self.use.columns is not None else 2"),
        kept=("columns is None", "table.columns == []", "use.columns or None"),
    ),
    "nothing asks what a module is": Rule(
        asks_for_module,
        (*OF_KINDS, "experiments/"),  # which know their own networks: they train, and record like anybody else
        broken=(
            "isinstance(module, nn.Linear)",
            "isinstance(module, (nn.Dropout, torch.nn.Embedding))",
            "isinstance(module, nn.LSTM | LSTM)",
            "issubclass(cls, nn.MultiheadAttention)",
        ),
        kept=("isinstance(module, nn.Module)", "nn.Linear(3, 4)", "isinstance(Linear, type)"),
    ),
    "only one place asks whether an optimiser divides elementwise": Rule(
        lambda node: isinstance(node, ast.Attribute) and node.attr == "elementwise",
        ("algebra/", "dual/strategy.py"),
        broken=("if rule.elementwise: pass", "rules[0].elementwise"),
        kept=("from dualform.algebra.elementwise import sign", "elementwise = 1"),
    ),
}


def found_in(source: str, rule: Rule) -> list[int]:
    """The lines that break a rule."""
    return [getattr(node, "lineno", 0) for node in nodes(source) if rule.finds(node)]


@cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def files(rule: Rule) -> Iterator[Path]:
    """Those that a rule is about."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.relative_to(PACKAGE).as_posix().startswith(rule.allowed):
            yield path


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_seam_holds(rule: Rule) -> None:
    broken = [
        f"{path.relative_to(PACKAGE)}:{line}" for path in files(rule) for line in found_in(path.read_text(), rule)
    ]
    assert not broken


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_rule_bites_and_only_where_it_should(rule: Rule) -> None:
    for snippet in rule.broken:
        assert found_in(snippet, rule), snippet
    for snippet in rule.kept:
        assert not found_in(snippet, rule), snippet


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_a_rule_allows_is_there(rule: Rule) -> None:
    """An exception for a file that is gone would hide the next one of that name."""
    gone = [place for place in rule.allowed if not (PACKAGE / place).exists() and place not in ("nn.py", "nn/")]
    assert not gone
    assert sum((PACKAGE / place).exists() for place in ("nn.py", "nn/")) == 1
