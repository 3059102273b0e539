"""The claim: the viewer answers fifty people at once, without an error and without growing.

    python -m benchmarks.viewer_load runs/demo --clients 50 --seconds 60

Starts `dualform view RUN` in a process of its own and waits until it has nothing more to prepare. Then each client, a
thread with a connection of its own, asks one question after the other without a pause, for the time: what the model
says of an input, its spotlight in a layer, the answer without some classes, a page of inputs, of a language model the
passages behind a prompt; inputs, layers and classes are drawn at random. Nothing but this machine is asked.

Seconds are those a client waits, from sending a question to having read the answer. Memory is that of the server's
process, when it first answers, when it has nothing more to prepare, at the end, and at most: what is resident, and what
of it is its own, without files that are mapped and can be dropped whenever another needs the room. An answer of any
other status than 200 is an error; with one, the exit code is 1.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from statistics import median, quantiles
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import Any

import psutil

_PATIENCE = 120.0  # seconds for an answer; one that takes longer is an error
_PREPARING = 900.0  # seconds at most until there is nothing more to prepare
_JSON = {"Content-Type": "application/json"}
Question = tuple[str, dict[str, Any]]
Sizes = tuple[float, float]  # in MB: resident, and without mapped files


class Asked:
    """A connection to the server, opened again if it broke."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)

    def __call__(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the answer."""
        try:
            self._connection.request("POST", f"/api/{name}", json.dumps(body), _JSON)
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, HTTPException) as error:
            self._connection.close()
            return 0, {"error": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        self._connection.close()


class Asker:
    """Makes questions that a run can answer, one unlike the other."""

    def __init__(self, run: dict[str, Any], seed: int) -> None:
        self._run, self._random = run, Random(seed)
        text = run["kind"] == "text"
        makers = {"predict": self._predict, "mute": self._mute}
        makers |= {"passages": self._passages} if text else {"spotlight": self._spotlight, "inputs": self._inputs}
        absent = {*run["cannot"], *(["passages"] if "spotlight" in run["cannot"] else [])}
        absent |= {"inputs"} if run["inputs"] is None else set()
        absent |= set() if run["classes"] else {"mute"}  # a stretch of time takes seconds, each time anew
        self._makers = {name: make for name, make in makers.items() if name not in absent}

    @property
    def kinds(self) -> list[str]:
        return list(self._makers)

    def question(self, kind: str | None = None) -> Question:
        kind = kind or self._random.choice(self.kinds)
        return kind, self._makers[kind]()

    def _input(self) -> dict[str, Any]:
        if self._run["kind"] == "text":
            example = self._run["example"]
            return {"prompt": example[: self._random.randint(1, len(example))]}
        return {"index": self._random.randrange(self._run["inputs"]["count"])}

    def _layer(self) -> str:
        return str(self._random.choice(self._run["layers"])["name"])

    def _predict(self) -> dict[str, Any]:
        return {"input": self._input()}

    def _spotlight(self) -> dict[str, Any]:
        return {"input": self._input(), "layer": self._layer(), "per": self._random.choice([None, *self._run["per"]])}

    def _mute(self) -> dict[str, Any]:
        classes = self._run["classes"]
        some = self._random.sample(classes, self._random.randint(1, max(1, len(classes) // 2)))
        return {"input": self._input(), "mute": [_set(one) for one in some]}

    def _inputs(self) -> dict[str, Any]:
        return {"start": self._random.randrange(self._run["inputs"]["count"]), "count": 60}

    def _passages(self) -> dict[str, Any]:
        return {"input": self._input(), "layer": self._layer()}


def _set(one: dict[str, Any]) -> dict[str, Any]:
    """The slots of a class, as they are named to be muted."""
    return {"label": [one["label"]]} | ({} if one["task"] is None else {"task": [one["task"]]})


@dataclass
class Found:
    """What clients saw: seconds of each answer by question, errors by status, and the first few of those."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[int] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, question: Question, status: int, answer: dict[str, Any], seconds: float) -> None:
        name, body = question
        self.seconds.setdefault(name, []).append(seconds)
        if status != 200:
            self.errors[status] += 1
            self.examples += [f"{status} {name} {json.dumps(body)}: {answer.get('error')}"] if not self.examples else []

    def add(self, other: "Found") -> None:
        for name, seconds in other.seconds.items():
            self.seconds.setdefault(name, []).extend(seconds)
        self.errors += other.errors
        self.examples += other.examples


class Memory:
    """Of a process in MB, watched inside a `with` block: all that is resident, and what of it is its own."""

    def __init__(self, process: int) -> None:
        self._process, self._done = psutil.Process(process), Event()
        self.peak = self.now()
        self._thread = Thread(target=self._watch, daemon=True)

    def now(self) -> Sizes:
        info = self._process.memory_info()
        return float(info.rss) / 1e6, float(info.rss - getattr(info, "shared", 0)) / 1e6

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            resident, own = self.now()
            self.peak = max(self.peak[0], resident), max(self.peak[1], own)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


@contextmanager
def viewer(run: Path) -> "Iterator[tuple[int, int]]":
    """A server in a process of its own: its number and its port."""
    command = [sys.executable, "-m", "dualform", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            found = re.search(r"http://127.0.0.1:(\d+)/", started.stdout.readline())
            if found is None:
                sys.exit(f"dualform view {run} did not start")
            yield started.pid, int(found[1])
        finally:
            started.terminate()


def measure(run: Path, clients: int, seconds: float, seed: int) -> dict[str, Any]:
    with viewer(run) as (process, port), Memory(process) as memory:
        ask = Asked(port)
        _, told = ask("run", {})
        start = memory.now()
        preparing = _prepare(ask, Asker(told, seed))
        warm = memory.now()
        found, took = _load(port, told, clients, seconds, seed)
        ask.close()
        sizes = {"at first": start, "prepared": warm, "at the end": memory.now(), "at most": memory.peak}
    return {"clients": clients, "preparing": preparing, **summary(found, took), "memory_mb": sizes}


def _prepare(ask: Asked, asker: Asker) -> float:
    """Wait until all jobs are done, and ask each kind of question once; how long that took."""
    if not asker.kinds:
        sys.exit("the viewer finds no model or no inputs of this run by itself, so there is nothing to ask")
    began = perf_counter()
    while not all(job["done"] or job["failed"] for job in ask("jobs", {})[1]["jobs"]):
        if perf_counter() - began > _PREPARING:
            sys.exit(f"the server is still preparing after {_PREPARING:.0f} s")
        sleep(0.2)
    for kind in asker.kinds:
        status, answer = ask(*asker.question(kind))
        if status != 200:
            sys.exit(f"{kind}: {answer['error']}")
    return perf_counter() - began


def _load(port: int, run: dict[str, Any], clients: int, seconds: float, seed: int) -> tuple[Found, float]:
    """All clients at once; what they saw, and how long the last of them took."""
    began, each = perf_counter(), [Found() for _ in range(clients)]
    threads = [
        Thread(target=_client, args=(Asked(port), Asker(run, seed + number), monotonic() + seconds, found))
        for number, found in enumerate(each, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Found()
    for one in each:
        found.add(one)
    return found, perf_counter() - began


def _client(ask: Asked, asker: Asker, end: float, found: Found) -> None:
    while monotonic() < end:
        question = asker.question()
        began = perf_counter()
        status, answer = ask(*question)
        found.note(question, status, answer, perf_counter() - began)
    ask.close()


def summary(found: Found, took: float) -> dict[str, Any]:
    everything = [one for some in found.seconds.values() for one in some]
    return {
        "seconds": took,
        "answers": len(everything),
        "answers_per_second": len(everything) / took,
        "latency_ms": _spread(everything),
        "by_question": {name: {"answers": len(one), **_spread(one)} for name, one in sorted(found.seconds.items())},
        "errors": {str(status): number for status, number in sorted(found.errors.items())},
        "examples": found.examples[:5],
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    """In milliseconds: the median, what 95 of 100 do not exceed, and the longest."""
    late = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else max(seconds)
    return {"median": 1e3 * median(seconds), "p95": 1e3 * late, "max": 1e3 * max(seconds)}


def report(found: dict[str, Any]) -> str:
    sizes = found["memory_mb"]
    lines = [
        f"{found['clients']} clients, {found['seconds']:.0f} s: {found['answers']:,} answers, "
        f"{found['answers_per_second']:.0f} a second; {found['preparing']:.0f} s to prepare",
        "waited, ms           answers   median      95%      max",
        _line("all", {"answers": found["answers"], **found["latency_ms"]}),
        *(_line(name, one) for name, one in found["by_question"].items()),
        "memory, MB           resident      own",
        *(f"{name:<18} {resident:>10.0f} {own:>8.0f}" for name, (resident, own) in sizes.items()),
        f"errors               {', '.join(f'{n:,} of status {s}' for s, n in found['errors'].items()) or 'none'}",
        *found["examples"],
    ]
    return "\n".join(lines)


def _line(name: str, one: dict[str, float]) -> str:
    return f"{name:<18} {one['answers']:>9,} {one['median']:>8.0f} {one['p95']:>8.0f} {one['max']:>8.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.viewer_load", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("run", type=Path, help="a recorded run whose model and inputs the viewer finds by itself")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    found = measure(options.run, options.clients, options.seconds, options.seed)
    print(json.dumps(found, indent=1) if options.json else report(found))
    sys.exit(1 if found["errors"] else 0)


if __name__ == "__main__":
    main()
