"""python -m benchmarks.peers --data data"""

import argparse
import json
import os
from pathlib import Path

from benchmarks.peers import measure, report


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="dualform beside other tools: seconds, memory and disk."
    )
    parser.add_argument("--quick", action="store_true", help="6,000 images and few steps: about a minute and a half")
    parser.add_argument("--data", default=os.environ.get("DUALFORM_DATA"), help="a directory with mnist/ in it")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    found = measure(None if options.data is None else Path(options.data), options.quick)
    print(json.dumps(found, indent=1) if options.json else report(found))


if __name__ == "__main__":
    main()
