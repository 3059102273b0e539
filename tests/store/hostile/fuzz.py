"""The same random edits, guided by what dualform's code does with them: for hours, outside of CI.

    pip install atheris
    python -m tests.store.hostile.fuzz -max_total_time=3600

Each input of atheris is read by hypothesis as the choices of one test. What it finds becomes a case in cases.py.
"""

import sys
import warnings
from typing import Any

import torch
from hypothesis import HealthCheck, settings


def main() -> None:
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        sys.exit("this needs atheris, which is not installed: pip install atheris")
    with atheris.instrument_imports(include=["dualform"]):
        from tests.store.hostile.test_fuzz import test_bytes_in_the_middle_of_a_file, test_signed_edits
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    tests: list[Any] = [_entry(test_signed_edits), _entry(test_bytes_in_the_middle_of_a_file)]

    def one(content: bytes) -> None:
        tests[content[0] % 2 if content else 0](content[1:])

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


def _entry(test: Any) -> Any:
    quiet = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    return quiet(test).hypothesis.fuzz_one_input


if __name__ == "__main__":
    main()
