"""Runs on disk: format, writer, reader. Nothing imported here needs torch."""

from dualform.store.chapter import Rows, StepRecord
from dualform.store.directory import Resumption, claim
from dualform.store.files import Column
from dualform.store.reader import Run, Shard
from dualform.store.schema import KeyLayout, Layer, Manifest, Optimizer, Parameter, Storage, Use, clean_name
from dualform.store.summary import summary, summary_lines
from dualform.store.writer import RunWriter

__all__ = [
    "Column",
    "KeyLayout",
    "Layer",
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
    "claim",
    "clean_name",
    "summary",
    "summary_lines",
]
