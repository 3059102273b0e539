"""The parent: trains once, starts a process for each peer, and puts their figures side by side.

A peer that is not installed or fails is reported with its reason; the others go on.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.peers.meters import size
from benchmarks.peers.task import CHECKPOINTS, COSTS, RUN, Settings, images_of, write

_HOME = Path(__file__).parents[2]  # where `benchmarks` is found
_TIMEOUT = 900  # seconds for one peer
_LEFT = {"plain": [], "recorded": [RUN], "checkpointed": [CHECKPOINTS]}  # by the training, and needed afterwards


class PeerFailed(Exception):
    """A peer could not be measured; the message says why."""


@dataclass(frozen=True)
class Peer:
    """A module with `prepare`, what to ask it for, how to install it, and the training it needs."""

    module: str
    scope: str
    package: str | None = None
    training: str = "plain"


_OWN = "benchmarks.peers."
PEERS: Mapping[str, Peer] = {
    "dualform, all layers": Peer(_OWN + "ours", "all", training="recorded"),
    "dualform, last layer": Peer(_OWN + "ours", "last", training="recorded"),
    "dualform, contributions": Peer(_OWN + "ours", "contribution", training="recorded"),
    "captum TracInCPFast": Peer(_OWN + "tracin", "last", "captum", training="checkpointed"),
    "captum TracInCPFastRandProj": Peer(_OWN + "tracin", "projected", "captum", training="checkpointed"),
    "kronfluence, all layers": Peer(_OWN + "ekfac", "all", "kronfluence"),
    "kronfluence, last layer": Peer(_OWN + "ekfac", "last", "kronfluence"),
    "traker, all layers": Peer(_OWN + "trak", "all", "traker"),
    "traker, last layer": Peer(_OWN + "trak", "last", "traker"),
    "dattri, all layers": Peer(_OWN + "logra", "all", "dattri"),
    "dattri, last layer": Peer(_OWN + "logra", "last", "dattri"),
}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Measure all peers; of those that fail, return the reason."""
    return compare(PEERS, data, Settings.of(quick))


def compare(peers: Mapping[str, Peer], data: Path | None, settings: Settings) -> dict[str, Any]:
    """Measure some peers."""
    with TemporaryDirectory(prefix="dualform-peers-") as directory:
        task = Path(directory)
        train, questions = images_of(data, settings)
        write(task, train, questions, settings)
        _start("benchmarks.peers.training", str(task))
        training = json.loads((task / COSTS).read_text())
        figures = {name: _figures(peer, task, training) for name, peer in peers.items()}
    facts = {"data": train.source, "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {"peers": figures, "training": training, "settings": {**asdict(settings), **facts}}


def _figures(peer: Peer, task: Path, training: dict[str, Any]) -> dict[str, Any]:
    result = task / f"{peer.module}-{peer.scope}.json"
    try:
        _start("benchmarks.peers.asking", peer.module, peer.scope, str(task), str(result))
        measured: dict[str, Any] = json.loads(result.read_text())
        if "missing" in measured:
            raise PeerFailed(_missing(peer, measured["missing"]))
    except PeerFailed as reason:
        return {"not_available": str(reason)}
    return _with_training(measured, peer, task, training)


def _with_training(measured: dict[str, Any], peer: Peer, task: Path, training: dict[str, Any]) -> dict[str, Any]:
    """Add what the peer's training costs: its seconds, its bytes."""
    cost = training[peer.training]
    extra = max(0.0, cost["ratio"] - 1) * training["plain"]["seconds"]  # a ratio below 1 is noise
    return {
        **measured,
        "training_ratio": cost["ratio"],
        "training_extra_seconds": extra,
        "disk_bytes": measured["kept_bytes"] + sum(size(task / name) for name in _LEFT[peer.training]),
        "all_seconds": extra + sum(measured[part]["cold"] for part in ("preparation", "first", "hundred")),
    }


def _missing(peer: Peer, module: str) -> str:
    command = f"pip install -c constraints.txt {peer.package}" if peer.package else "pip install -e '.[bench]'"
    return f"the module {module!r} is not installed: {command}"


def _start(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, cwd=_HOME, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"it took longer than {_TIMEOUT} seconds") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PeerFailed(f"it ended with code {done.returncode}: {lines[-1] if lines else 'no message'}")
