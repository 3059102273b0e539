"""A Trainer in two processes records one run, which has every token of every example once in each epoch."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import dualform
from dualform.store import Run
from tests.huggingface.training import Rows
from tests.markdown import ROOT

pytestmark = pytest.mark.slow


def launch(*arguments: object) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.huggingface.training", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_processes_record_one_run(tmp_path: Path) -> None:
    launch(tmp_path)
    memory = dualform.load(tmp_path / "run")
    certificate = memory.verify()
    assert certificate.ok, str(certificate)
    assert memory.steps == 4
    shards = Run(tmp_path / "run").slot_shards("transformer.wte")
    places = Counter(place for shard in shards for place in shard.decoded("transformer.wte", "place").tolist())
    del places[-1]
    assert places == {place: 2 for row in Rows(24).rows for place in row["place"]}
