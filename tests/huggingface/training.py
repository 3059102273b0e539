"""A tiny training by a Trainer, and what its run says of each slot of the embedding.

torchrun --nproc-per-node 2 -m tests.huggingface.training DIRECTORY [CHECKPOINT]
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import dualform
from dualform.huggingface import Record
from tests.raw_run import RawRun

VOCABULARY, PADDING = 40, 0
Row = dict[str, Any]


class Rows(torch.utils.data.Dataset[Row]):
    """Sequences of tokens, each with an id, and a tag for each of its tokens."""

    def __init__(self, number: int = 22, ids: bool = True, ragged: bool = True) -> None:
        random, self.rows = torch.Generator().manual_seed(5), []
        for i in range(number):
            length = 6 - ragged * int(torch.randint(0, 3, (1,), generator=random))
            tokens = torch.randint(3, VOCABULARY, (length,), generator=random).tolist()
            row = {"input_ids": tokens, "labels": tokens, "place": [100 * i + j for j in range(length)]}
            self.rows.append(row | ({"id": f"row {i}"} if ids else {}))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Row:
        return self.rows[row]


def pad(rows: Sequence[Mapping[str, Any]], left: bool = False) -> dict[str, Tensor]:
    """A collator: rows as long as the longest one."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(row: Sequence[int], filling: int) -> list[int]:
        rest = [filling] * (longest - len(row))
        return [*rest, *row] if left else [*row, *rest]

    return {
        "input_ids": torch.tensor([padded(row["input_ids"], PADDING) for row in rows]),
        "attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([padded(row["labels"], -100) for row in rows]),
    }


def pad_left(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    return pad(rows, left=True)


def gpt2(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
        "n_inner": 24,
    }
    model: nn.Module = GPT2LMHeadModel(GPT2Config(**(sizes | options), bos_token_id=1, eos_token_id=2))
    return model


class Trained(NamedTuple):
    trainer: Any
    record: Record
    model: nn.Module


def prepare(
    home: Path,
    model: nn.Module | None = None,
    dataset: Any = None,
    collate: Callable[..., Any] = pad,
    callbacks: Sequence[TrainerCallback] = (),
    trainer: type[Trainer] = Trainer,
    record: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Trained:
    """A trainer that records to `home / "run"`."""
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4, "num_train_epochs": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5,
        "learning_rate": 1e-2, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True,
        "logging_strategy": "no",
    }  # fmt: skip
    model = gpt2() if model is None else model
    callback = Record(**{"path": home / "run", **(record or {})})
    made = trainer(
        model=model,
        args=TrainingArguments(str(home / "trained"), **(defaults | arguments)),
        train_dataset=Rows() if dataset is None else dataset,
        eval_dataset=Rows(6),
        data_collator=collate,
        callbacks=[callback, *callbacks],
    )
    return Trained(made, callback, model)


def train(home: Path, **options: Any) -> Trained:
    """Train, and check what holds after any training."""
    trained = prepare(home, **options)
    trained.trainer.train()
    check_left_alone(trained)
    certificate = dualform.load(trained.record.path).verify()
    assert certificate.ok, str(certificate)
    return trained


def check_left_alone(trained: Trained) -> None:
    """Nothing of the recorder is on the model or on the trainer."""
    assert not {"training_step", "_run_epoch"} & vars(trained.trainer).keys()
    for module in trained.model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            assert not [hook for hook in hooks.values() if "dualform" in f"{type(hook)}{hook}"]


def tokens_by(home: Path, tag: str) -> list[tuple[Any, int]]:
    """What the run says of each slot of the embedding: its tag, and its key, which is a token."""
    layer = RawRun(home / "run").layers["transformer.wte"]
    return list(zip(layer.tags[tag], layer.keys.argmax(axis=1).tolist(), strict=True))


if __name__ == "__main__":  # one of several processes, which torchrun has begun
    training = prepare(
        Path(sys.argv[1]),
        dataset=Rows(24),
        record={"tags": ["place"], "overwrite": True},
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        bf16=True,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=1,
    )
    training.trainer.train(resume_from_checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)
    check_left_alone(training)
