"""Small runs of whole models to look at: a convolutional network, and two Transformers; each recorded in a moment.

opened_run = open_run(convolutions(path), CONVOLUTIONS)
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dualform
from dualform.inputs import INPUTS, save_inputs
from dualform.text import Text
from dualform.viewer.opened_run import Companions
from tests.viewer.runs import FABLE, sgd, standardised

CONVOLUTIONS = Companions(model="tests.viewer.whole_models:convolutional")
TRANSFORMER = Companions(model="tests.viewer.whole_models:reader")
GPT = Companions(model="tests.viewer.whole_models:writer")


def convolutional() -> nn.Module:
    """Tell corners apart: two convolutions, norms of both sorts, a linear output."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip


def convolutions(path: Path) -> Path:
    """A small convolutional network on 8 x 8 pixels: 20 steps of six, of 30 training images."""
    torch.manual_seed(0)
    model = convolutional()
    optimizer = sgd(model.parameters())
    raw, labels = corners(30)
    about = {"inputs": INPUTS, "class_names": ["top left", "top right", "bottom"], "image_shape": [8, 8]}
    with dualform.record(model, optimizer, path, dtype="float32", about=about) as recorder:
        for step in range(20):
            ids = torch.randint(30, (6,))
            recorder.tag(id=ids, label=labels[ids])
            loss = F.cross_entropy(model(standardised(raw[ids])[:, None]), labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                recorder.sync()
    tests, tested = corners(12)
    save_inputs(path, inputs=standardised(tests)[:, None], labels=tested, images=tests, training_images=raw)
    return path


def corners(count: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 8, 8) that are bright in one corner, or below."""
    images, labels = torch.randint(0, 6, (count, 8, 8), dtype=torch.uint8), torch.arange(count) % 3
    for image, label in zip(images, labels.tolist(), strict=True):
        rows, columns = ((slice(0, 4), slice(0, 4)), (slice(0, 4), slice(4, 8)), (slice(4, 8), slice(0, 8)))[label]
        image[rows, columns] += 10
    return images, labels


class Reader(nn.Module):
    """A Transformer that reads eight tokens and tells which of three comes most often."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(3, 8), nn.Embedding(8, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        read = self.encoder(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))
        answers: Tensor = self.head(read.mean(dim=1))
        return answers


def reader() -> nn.Module:
    return dualform.unfuse(Reader())


def transformer(path: Path) -> Path:
    """An encoder of sequences: 20 steps of six, under AdamW; its inputs are whole numbers, and no images."""
    torch.manual_seed(0)
    model = reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sequences = torch.randint(3, (40, 8))
    labels = F.one_hot(sequences, 3).sum(dim=1).argmax(dim=1)
    about = {"inputs": INPUTS, "class_names": ["a", "b", "c"]}
    with dualform.record(model, optimizer, path, about=about) as recorder:
        for _ in range(20):
            ids = torch.randint(30, (6,))
            recorder.tag(id=ids, label=labels[ids])
            loss = F.cross_entropy(model(sequences[ids]), labels[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_inputs(path, inputs=sequences[30:], labels=labels[30:])
    return path


class Writer(nn.Module):
    """A causal Transformer of characters whose head is its embedding, and which returns its logits alone."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, 8), nn.Embedding(64, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.ln_f, self.head = nn.LayerNorm(8), nn.Linear(8, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        read = self.wte(tokens) + self.wpe(torch.arange(time))
        read = self.block(read, nn.Transformer.generate_square_subsequent_mask(time), is_causal=True)
        logits: Tensor = self.head(self.ln_f(read))
        return logits


def writer() -> nn.Module:
    return dualform.unfuse(Writer(len(set(FABLE))))


def gpt(path: Path) -> Path:
    """A language model that is a Transformer with a tied head, trained on pieces of the fable."""
    torch.manual_seed(0)
    words = FABLE * 4
    vocabulary = tuple(sorted(set(words)))
    ids = torch.tensor([vocabulary.index(character) for character in words])
    model = writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with dualform.record(model, optimizer, path, about={"text": "text.json"}) as recorder:
        for _ in range(20):
            positions = torch.randint(len(ids) - 13, (4, 1)) + torch.arange(12)  # (batch, time)
            recorder.tag(position=positions)
            loss = F.cross_entropy(model(ids[positions]).flatten(0, 1), ids[positions + 1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    Text(ids.numpy(), vocabulary, "", ((0, "First"), (2 * len(FABLE), "Second"))).save(path / "text.json")
    return path
