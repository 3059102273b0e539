"""Runs on disk: format, writer, reader. Nothing imported here needs torch."""

from dualform.store.chapter import Rows, StepRecord
from dualform.store.files import Column
from dualform.store.format import DTYPES, Layer, Manifest, Optimizer, Part, Storage, clean_name
from dualform.store.reader import Run, Shard
from dualform.store.summary import summary, summary_lines
from dualform.store.writer import RunWriter, prepare

__all__ = [
    "DTYPES",
    "Column",
    "Layer",
    "Manifest",
    "Optimizer",
    "Part",
    "Rows",
    "Run",
    "RunWriter",
    "Shard",
    "StepRecord",
    "Storage",
    "clean_name",
    "prepare",
    "summary",
    "summary_lines",
]
