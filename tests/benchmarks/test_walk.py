"""How far a reader has to walk, and how long what is read there is: held, so that it does not grow unnoticed."""

import pytest

from benchmarks.walk import LIMITS, LONGEST_FILE, LONGEST_FUNCTION, Walk, longest, walks


@pytest.fixture(scope="module")
def walked() -> dict[str, Walk]:
    return walks()


@pytest.mark.parametrize("name", LIMITS)
def test_a_walk_is_short(walked: dict[str, Walk], name: str) -> None:
    (functions, files), limit = walked[name].length, LIMITS[name]
    assert functions <= limit.functions, walked[name].functions
    assert files <= limit.files, sorted(walked[name].functions)


def test_a_walk_goes_through_what_it_should(walked: dict[str, Walk]) -> None:
    warm, cold, step = ({path.as_posix() for path in walked[name].functions} for name in LIMITS)
    assert {"attention/search.py", "kinds/base.py"} <= warm
    assert "engine/plan.py" not in warm  # an index answers, and no slot is read
    assert {"engine/plan.py", "slots/blocks.py", "store/shard.py"} <= cold
    assert {"recorder/session.py", "recorder/captures.py", "kinds/probe.py"} <= step
    assert "recorder/audit.py" not in step


def test_no_function_and_no_file_is_long() -> None:
    functions, files = longest()
    assert [(lines, name) for lines, name in functions if lines > LONGEST_FUNCTION] == []
    assert [(lines, name) for lines, name in files if lines > LONGEST_FILE] == []
