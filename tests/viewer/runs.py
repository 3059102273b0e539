"""Small runs to look at: pictures in two tasks, rows of numbers, a language model; each recorded in a moment.

opened_run = open_run(pictures(path), PICTURES)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.experiments.language.training import KEYS, MERGED, VALUES, LanguageHyperparameters, train
from dualform.inputs import INPUTS, save_inputs
from dualform.text import Text
from dualform.viewer.api import Api
from dualform.viewer.opened_run import Companions
from dualform.viewer.requests import parse_request
from tests.store.hostile.forge import Forged

SHAPE = (4, 5)
TASKS = {"triangles": ["none", "small", "large"], "stripes": ["across", "down", "both"]}
PICTURES = Companions(model="tests.viewer.runs:network")
ROWS = Companions(model="tests.viewer.runs:regression")
FABLE = "a wolf and a lamb came to a brook. the wolf stood high up the stream and the lamb a little below. "

Optimiser = Callable[[Any], torch.optim.Optimizer]


def asked(api: Api, name: str, body: object) -> dict[str, Any]:
    """What a body like the page's gets, in this thread."""
    return api.answer(parse_request(name, body))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 3))


def regression() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def pictures(path: Path, optimiser: Optimiser = sgd, **storage: Any) -> Path:
    """Two tasks, one after the other, of 30 training images each; 24 steps of five in four chapters."""
    torch.manual_seed(0)
    model = network()
    optimizer = optimiser(model.parameters())
    raw = torch.randint(0, 17, (60, 20), dtype=torch.uint8)
    labels = torch.arange(60) % 3
    about = {"inputs": INPUTS, "class_names": TASKS, "image_shape": list(SHAPE)}
    storage = {"dtype": "float32", **storage}
    with dualform.record(model, optimizer, path, about=about, **storage) as recorder:
        for step in range(24):
            task = step // 12
            ids = torch.randint(30, (5,)) + 30 * task
            recorder.tag(id=ids, label=labels[ids], task=list(TASKS)[task])
            loss = F.cross_entropy(model(standardised(raw[ids])), labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 6 == 5:
                recorder.sync()
    tests = torch.randint(0, 17, (12, 20), dtype=torch.uint8)
    save_inputs(
        path, inputs=standardised(tests), labels=torch.arange(12) % 3, tasks=torch.arange(12) // 6, images=tests,
        training_images=raw,
    )  # fmt: skip
    return path


def untagged(path: Path) -> Path:
    """The pictures, some slots of which belong to no single one: all of the first layer's but the last steps'."""
    pictures(path)
    forged = Forged.of(path)
    for number, shard in enumerate(forged.shards[1:5]):  # the last one ends the run, and has no slots
        shard.with_own_tags()
        for layer in ("0", "2"):
            slots = np.arange(len(shard.tensors[f"tags/{layer}/id"]))
            # of each step the first slot has no tags, and the second a label alone
            missing = {"id": slots % 5 < 2, "label": slots % 5 < 1, "task": slots % 5 < 2}
            for tag, mask in missing.items():
                mask |= layer == "0" and number < 3
                shard.tensors[f"tags/{layer}/{tag}"][mask] = 0
                shard.tensors[f"untagged/{layer}/{tag}"] = mask
    forged.write(path)
    return path


def standardised(raw: Tensor) -> Tensor:
    return (raw.float() - 8) / 5


def rows(path: Path) -> Path:
    """No labels, no images, nothing said about the model; every example goes through the layers as two rows."""
    torch.manual_seed(0)
    model = regression()
    optimizer = sgd(model.parameters())
    with dualform.record(model, optimizer, path, dtype="float32") as recorder:
        for step in range(10):
            recorder.tag(sensor=torch.arange(4) % 2, day=f"day {step % 3}")
            loss = model(torch.randn(4, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    np.save(path / "mine.npy", torch.randn(3, 6).numpy())
    return path


def language(path: Path, kept: str = VALUES) -> Path:
    """A model of characters, trained on a fable in two titled parts."""
    words = FABLE * 4
    vocabulary = tuple(sorted(set(words)))
    ids = np.array([vocabulary.index(character) for character in words])
    text = Text(ids, vocabulary, "", ((0, "First"), (2 * len(FABLE), "Second")))
    hparams = LanguageHyperparameters(embedding=4, hidden=6, dropout=0.0, lr=1e-2, clip=1.0, batch=4, span=7, steps=30)
    assert kept in (MERGED, KEYS, VALUES)
    train(text, hparams, path, seed=0, kept=kept)
    return path
