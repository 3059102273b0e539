"""The claim: the viewer is there at once, and follows whoever looks around.

    python -m benchmarks.viewer results/single/runs/seed-0

Starts `dualform view RUN` in a process of its own. Seconds are those a browser waits at the least: from sending a
question to having read the answer. `first page` is everything the page asks for before it shows the run and its inputs,
one after the other, right after the server says that it is up. The others are asked once nothing is being prepared any
more, of inputs that were not asked about before: the spotlight in all layers, one class muted, all probabilities over
training time.
"""

import argparse
import json
import re
import sys
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from benchmarks.viewer_load import ViewerClient, viewer

GOALS = {"first page": 1.0, "spotlight, all layers": 0.5, "one class muted": 0.15}  # seconds
_INPUTS = 30


def first_page(port: int, ask: ViewerClient) -> float:
    began = perf_counter()
    connection = HTTPConnection("127.0.0.1", port)
    page = _got(connection, "/")
    for path in dict.fromkeys(re.findall(r"/page/[\w./]+", page)):
        _got(connection, path)
    connection.close()
    for name in ("run", "inputs", "jobs"):
        status, _ = ask(name, {})
        assert status == 200
    return perf_counter() - began


def _got(connection: HTTPConnection, path: str) -> str:
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200
    return response.read().decode()


def prepared(ask: ViewerClient) -> dict[str, float]:
    """Return the seconds until each job was done."""
    began, done = perf_counter(), dict[str, float]()
    while True:
        jobs = ask("jobs", {})[1]["jobs"]
        done |= {job["name"]: perf_counter() - began for job in jobs if job["done"] and job["name"] not in done}
        if len(done) == len(jobs):
            return done
        sleep(0.05)


def looked_around(ask: ViewerClient, run: dict[str, Any]) -> dict[str, list[float]]:
    """Return the seconds of each answer, one input after the other."""
    seconds: dict[str, list[float]] = {"spotlight, all layers": [], "one class muted": [], "over training time": []}
    per = run["per"][0] if run["per"] else None
    for number in range(min(_INPUTS, run["inputs"]["count"])):
        of = {"input": {"index": number}}
        muted = {"label": [run["classes"][number % len(run["classes"])]["label"]]}
        asked = {
            "spotlight, all layers": [
                ("spotlight", {**of, "layer": layer["name"], "per": per}) for layer in run["layers"]
            ],
            "one class muted": [("mute", {**of, "mute": [muted]})],
            "over training time": [("history", of)],
        }
        for what, questions in asked.items():
            began = perf_counter()
            for name, body in questions:
                status, answer = ask(name, body)
                assert status == 200, answer
            seconds[what].append(perf_counter() - began)
    return seconds


def measure(run: Path) -> dict[str, Any]:
    with viewer(run) as (_, port):
        ask = ViewerClient(port)
        page = first_page(port, ask)
        _, about = ask("run", {})
        if about["kind"] == "text" or not about["inputs"] or not about["classes"]:
            sys.exit("this needs a run with classes, and inputs that the viewer finds by itself")
        jobs = prepared(ask)
        seconds = {"first page": [page], **looked_around(ask, about)}
        ask.close()
    slots = {layer["name"]: layer["slots"] for layer in about["layers"]}
    return {"slots": slots, "prepared": jobs, "seconds": seconds, "goals": GOALS}


def report(results: dict[str, Any]) -> str:
    lines = ["waited, ms                median      max     goal"]
    for what, seconds in results["seconds"].items():
        goal = f"{1e3 * GOALS[what]:8.0f}" if what in GOALS else "       -"
        lines.append(f"{what:<24} {1e3 * median(seconds):>7.0f} {1e3 * max(seconds):>8.0f} {goal}")
    ends = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in results["prepared"].items())
    return "\n".join([*lines, f"prepared after: {ends}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path, help="a recorded run of images whose model and inputs the viewer finds")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    results = measure(options.run)
    print(json.dumps(results, indent=1) if options.json else report(results))
    met = all(median(results["seconds"][what]) <= goal for what, goal in GOALS.items())
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
