"""Run what has to pass before a change lands: `python -m tests`, or in about a minute `python -m tests --quick`.

    python -m tests                         linter, formatter, types, and all tests but those marked long
    python -m tests --quick                 the same without tests marked slow or browser, and with few random cases
    python -m tests tests/store -x          the same of one room

Other arguments are passed on to pytest.
"""

import os
import subprocess
import sys

STATIC = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])
QUICK = "not slow and not browser and not long"


def main(arguments: list[str]) -> int:
    # a file's tests share what it takes to make them ready, so that each file goes to one process
    tests, environment = ["pytest", "-n", "auto", "--dist", "loadfile"], dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")  # the processes share the cores
    if "--quick" in arguments:
        arguments = [argument for argument in arguments if argument != "--quick"]
        tests += ["-m", QUICK]
        environment.setdefault("DUALFORM_TESTS", "quick")
    for command in (*STATIC, [*tests, *arguments]):
        print("$", *command, flush=True)
        code = subprocess.run([sys.executable, "-m", *command], env=environment).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
