"""Runs on disk: format, writer, reader, backends. Nothing imported here needs torch."""

from dualform.store.backend import Backend, InMemory, LocalFiles, Where, open_backend
from dualform.store.chapter import Rows, StepRecord
from dualform.store.directory import Resumption, claim
from dualform.store.format import DTYPES, Layer, Manifest, Optimizer, Part, Storage, clean_name
from dualform.store.reader import Run, Shard
from dualform.store.shard_file import Column
from dualform.store.summary import summary, summary_lines
from dualform.store.writer import RunWriter

__all__ = [
    "DTYPES",
    "Backend",
    "Column",
    "InMemory",
    "Layer",
    "LocalFiles",
    "Manifest",
    "Optimizer",
    "Part",
    "Resumption",
    "Rows",
    "Run",
    "RunWriter",
    "Shard",
    "StepRecord",
    "Storage",
    "Where",
    "claim",
    "clean_name",
    "open_backend",
    "summary",
    "summary_lines",
]
