"""Property tests are repeatable and have no time limit, for machines are noisy.

DUALFORM_TESTS=thorough tries ten times as many cases, other ones each time; DUALFORM_TESTS=quick tries few.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.tally import TRIED

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("usual", derandomize=True, max_examples=40, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("quick", derandomize=True, max_examples=6, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("thorough", max_examples=400, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("DUALFORM_TESTS", "usual"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a process that ran some of the tests say how much it has tried."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tried"] = dict(TRIED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    TRIED.update(getattr(node, "workeroutput", {}).get("tried", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, number in TRIED.items():
        terminalreporter.write_line(f"{number:>7,} {what}")
