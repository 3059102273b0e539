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

_TIMEOUT = 120.0  # seconds for an answer; one that takes longer is an error
_MAX_PREPARING = 900.0  # seconds at most until there is nothing more to prepare
_JSON = {"Content-Type": "application/json"}
Question = tuple[str, dict[str, Any]]
Sizes = tuple[float, float]  # in MB: resident, and without mapped files


class ViewerClient:
    """A connection to the server, opened again if it broke."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)

    def __call__(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Ask a question. Returns the status and the answer."""
        try:
            self._connection.request("POST", f"/api/{name}", json.dumps(body), _JSON)
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, HTTPException) as error:
            self._connection.close()
            return 0, {"error": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        self._connection.close()


class QuestionMaker:
    """Makes random questions that a run can answer."""

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
        return {"input": self._input(), "mute": [_set(group) for group in some]}

    def _inputs(self) -> dict[str, Any]:
        return {"start": self._random.randrange(self._run["inputs"]["count"]), "count": 60}

    def _passages(self) -> dict[str, Any]:
        return {"input": self._input(), "layer": self._layer()}


def _set(group: dict[str, Any]) -> dict[str, Any]:
    """Return the slots of a class as the viewer's question names them."""
    return {"label": [group["label"]]} | ({} if group["task"] is None else {"task": [group["task"]]})


@dataclass
class ClientLog:
    """What clients measured: seconds of each answer by question, errors by status, and a few of these."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[int] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, question: Question, status: int, answer: dict[str, Any], seconds: float) -> None:
        name, body = question
        self.seconds.setdefault(name, []).append(seconds)
        if status != 200:
            self.errors[status] += 1
            self.examples += [f"{status} {name} {json.dumps(body)}: {answer.get('error')}"] if not self.examples else []

    def add(self, other: "ClientLog") -> None:
        for name, seconds in other.seconds.items():
            self.seconds.setdefault(name, []).extend(seconds)
        self.errors += other.errors
        self.examples += other.examples


class Memory:
    """Watches the memory of a process inside a `with` block, in MB: all that is resident, and what is not shared."""

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
    """Start a server in a process of its own. Yields its process id and its port."""
    command = [sys.executable, "-m", "dualform", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            address = re.search(r"http://127.0.0.1:(\d+)/", started.stdout.readline())
            if address is None:
                sys.exit(f"dualform view {run} did not start")
            yield started.pid, int(address[1])
        finally:
            started.terminate()


def measure(run: Path, clients: int, seconds: float, seed: int) -> dict[str, Any]:
    with viewer(run) as (process, port), Memory(process) as memory:
        ask = ViewerClient(port)
        _, run_facts = ask("run", {})
        start = memory.now()
        preparing = _prepare(ask, QuestionMaker(run_facts, seed))
        warm = memory.now()
        log, took = _load(port, run_facts, clients, seconds, seed)
        ask.close()
        sizes = {"at first": start, "prepared": warm, "at the end": memory.now(), "at most": memory.peak}
    return {"clients": clients, "preparing": preparing, **summary(log, took), "memory_mb": sizes}


def _prepare(ask: ViewerClient, maker: QuestionMaker) -> float:
    """Wait until all jobs are done, and ask each kind of question once; how long that took."""
    if not maker.kinds:
        sys.exit("the viewer finds no model or no inputs of this run by itself, so there is nothing to ask")
    began = perf_counter()
    while not all(job["done"] or job["failed"] for job in ask("jobs", {})[1]["jobs"]):
        if perf_counter() - began > _MAX_PREPARING:
            sys.exit(f"the server is still preparing after {_MAX_PREPARING:.0f} s")
        sleep(0.2)
    for kind in maker.kinds:
        status, answer = ask(*maker.question(kind))
        if status != 200:
            sys.exit(f"{kind}: {answer['error']}")
    return perf_counter() - began


def _load(port: int, run: dict[str, Any], clients: int, seconds: float, seed: int) -> tuple[ClientLog, float]:
    """Run all clients at once. Returns what they measured, and the seconds until the last one ended."""
    began, each = perf_counter(), [ClientLog() for _ in range(clients)]
    threads = [
        Thread(target=_client, args=(ViewerClient(port), QuestionMaker(run, seed + number), monotonic() + seconds, log))
        for number, log in enumerate(each, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    merged = ClientLog()
    for log in each:
        merged.add(log)
    return merged, perf_counter() - began


def _client(ask: ViewerClient, maker: QuestionMaker, end: float, log: ClientLog) -> None:
    while monotonic() < end:
        question = maker.question()
        began = perf_counter()
        status, answer = ask(*question)
        log.note(question, status, answer, perf_counter() - began)
    ask.close()


def summary(log: ClientLog, took: float) -> dict[str, Any]:
    everything = [seconds for of_question in log.seconds.values() for seconds in of_question]
    return {
        "seconds": took,
        "answers": len(everything),
        "answers_per_second": len(everything) / took,
        "latency_ms": _spread(everything),
        "by_question": {
            name: {"answers": len(seconds), **_spread(seconds)} for name, seconds in sorted(log.seconds.items())
        },
        "errors": {str(status): number for status, number in sorted(log.errors.items())},
        "examples": log.examples[:5],
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the maximum, in milliseconds."""
    late = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else max(seconds)
    return {"median": 1e3 * median(seconds), "p95": 1e3 * late, "max": 1e3 * max(seconds)}


def report(results: dict[str, Any]) -> str:
    sizes = results["memory_mb"]
    lines = [
        f"{results['clients']} clients, {results['seconds']:.0f} s: {results['answers']:,} answers, "
        f"{results['answers_per_second']:.0f} a second; {results['preparing']:.0f} s to prepare",
        "waited, ms           answers   median      95%      max",
        _line("all", {"answers": results["answers"], **results["latency_ms"]}),
        *(_line(name, row) for name, row in results["by_question"].items()),
        "memory, MB           resident      own",
        *(f"{name:<18} {resident:>10.0f} {own:>8.0f}" for name, (resident, own) in sizes.items()),
        f"errors               {', '.join(f'{n:,} of status {s}' for s, n in results['errors'].items()) or 'none'}",
        *results["examples"],
    ]
    return "\n".join(lines)


def _line(name: str, row: dict[str, float]) -> str:
    return f"{name:<18} {row['answers']:>9,} {row['median']:>8.0f} {row['p95']:>8.0f} {row['max']:>8.0f}"


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
    results = measure(options.run, options.clients, options.seconds, options.seed)
    print(json.dumps(results, indent=1) if options.json else report(results))
    sys.exit(1 if results["errors"] else 0)


if __name__ == "__main__":
    main()
