"""Runs on disk: format, writer, reader, backends. Nothing imported here needs torch."""

from dualform.store.backend import Backend, InMemory, LocalFiles, Where, open_backend
from dualform.store.chapter import Rows, StepRecord
from dualform.store.directory import Resumption, claim
from dualform.store.run import Run
from dualform.store.schema import KeyLayout, Layer, Manifest, Optimizer, Parameter, Storage, Use
from dualform.store.shard import Shard
from dualform.store.shard_file import Column
from dualform.store.summary import summary, summary_lines
from dualform.store.writer import RunWriter

__all__ = [
    "Backend",
    "Column",
    "InMemory",
    "KeyLayout",
    "Layer",
    "LocalFiles",
    "Manifest",
    "Optimizer",
    "Parameter",
    "Resumption",
    "Rows",
    "Run",
    "RunWriter",
    "Shard",
    "StepRecord",
    "Storage",
    "Use",
    "Where",
    "claim",
    "open_backend",
    "summary",
    "summary_lines",
]
