"""A small language model of a small text, recorded in full and merged."""

from dataclasses import dataclass
from pathlib import Path

import pytest

import dualform
from dualform.datasets import tokens
from dualform.datasets.corpus import Corpus, Part
from dualform.experiments.language.training import KEYS, MERGED, LanguageHyperparameters, TrainedLanguageModel, train
from dualform.text import Text

HYPERPARAMETERS = LanguageHyperparameters(
    embedding=4, hidden=6, dropout=0.2, lr=1e-2, clip=1.0, batch=4, span=7, steps=40
)
FABLE = (
    "A Wolf and a Lamb came to a running brook to quench their thirst. The Wolf stood high up the stream and the "
    "Lamb a little distance below. Having made up his mind to seize the Lamb, the Wolf bethought himself how he "
    "might justify his act. "
)


@dataclass(frozen=True)
class Case:
    """A trained model with its memories and texts."""

    text: Text
    test: Text
    trained: TrainedLanguageModel
    memory: dualform.Memory
    merged: dualform.Memory
    path: Path


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("language")
    text, test = tokens.characters(Corpus("fable", Part(FABLE, ((0, "The Wolf and the Lamb"),)), Part(FABLE[40:200])))
    trained = train(text, HYPERPARAMETERS, path / "full", seed=0, kept=KEYS)
    train(text, HYPERPARAMETERS, path / "merged", seed=0, kept=MERGED)
    return Case(text, test, trained, dualform.load(path / "full"), dualform.load(path / "merged"), path)
