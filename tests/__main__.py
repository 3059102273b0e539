"""Everything that has to pass before a change lands: `python -m tests`."""

import subprocess
import sys

CHECKS = (
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["mypy"],
    ["pytest"],
)


def main() -> int:
    for command in CHECKS:
        print("$", *command, flush=True)
        code = subprocess.run([sys.executable, "-m", *command, *(sys.argv[1:] if command[0] == "pytest" else [])])
        if code.returncode:
            return code.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
