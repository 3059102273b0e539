"""Which training examples are behind this prediction, and what would the model say without them?

    with dualform.record(model, optimizer, "runs/mnist") as recorder:
        ...                                             # a training loop
    memory = dualform.load("runs/mnist")
    memory.attend(model, test_images)["layers.2"].top(10)

Names are imported when they are first used, so that `dualform --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualform import algebra as algebra
    from dualform import duality as duality
    from dualform import errors as errors
    from dualform import huggingface as huggingface
    from dualform import inputs as inputs
    from dualform import kinds as kinds
    from dualform import lightning as lightning
    from dualform import nn as nn
    from dualform import plots as plots
    from dualform import text as text
    from dualform.attention.plan import Question as Question
    from dualform.attention.questions import Output as Output
    from dualform.attention.questions import Timeline as Timeline
    from dualform.attention.questions import Top as Top
    from dualform.attention.questions import Total as Total
    from dualform.attention.spotlight import LayerSpotlight as LayerSpotlight
    from dualform.attention.spotlight import Spotlight as Spotlight
    from dualform.dual.certificate import Certificate as Certificate
    from dualform.dual.group_weights import GroupWeights as GroupWeights
    from dualform.errors import DualformError as DualformError
    from dualform.memory import Memory as Memory
    from dualform.memory import load as load
    from dualform.nn import unfuse as unfuse
    from dualform.recipe import Recipe as Recipe
    from dualform.recorder import Recorder as Recorder
    from dualform.recorder import record as record
    from dualform.store.coverage import Coverage as Coverage
    from dualform.table import Table as Table

_HOME = {
    "Certificate": "dualform.dual.certificate",
    "Coverage": "dualform.store.coverage",
    "DualformError": "dualform.errors",
    "GroupWeights": "dualform.dual.group_weights",
    "LayerSpotlight": "dualform.attention.spotlight",
    "Memory": "dualform.memory",
    "Output": "dualform.attention.questions",
    "Question": "dualform.attention.plan",
    "Recipe": "dualform.recipe",
    "Recorder": "dualform.recorder",
    "Spotlight": "dualform.attention.spotlight",
    "Table": "dualform.table",
    "Timeline": "dualform.attention.questions",
    "Top": "dualform.attention.questions",
    "Total": "dualform.attention.questions",
    "load": "dualform.memory",
    "record": "dualform.recorder",
    "unfuse": "dualform.nn",
}
_MODULES = ("algebra", "duality", "errors", "huggingface", "inputs", "kinds", "lightning", "nn", "plots", "text")

__version__ = "0.1.0"
__all__ = ["__version__", *_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dualform.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'dualform' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
