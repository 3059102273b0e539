"""Models as people train them: adapters on a frozen or quantised base, checkpointed, compiled, noised, averaged."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import dualform
from tests.huggingface.training import VOCABULARY, Rows, gpt2, tokens_by, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),  # of options that it calls by new names
    pytest.mark.filterwarnings("ignore::FutureWarning:peft"),
]


def llama() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    return model


class Int8Linear(nn.Linear):
    """A frozen layer as libraries quantise it: whole numbers, and a scale for each row."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False)
        scale = layer.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.weight = nn.Parameter((layer.weight.detach() / scale).round().to(torch.int8), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, (self.weight * self.scale).to(inputs.dtype))  # type: ignore[operator]


def quantised(model: nn.Module) -> nn.Module:
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(module, name, Int8Linear(child))
    return model


def with_lora(model: nn.Module, **options: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    adapted: nn.Module = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_dropout=0.1, **options))
    return adapted


BACKEND = {"torch_compile_backend": "aot_eager"}


@pytest.mark.parametrize("base", ["plain", "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"bf16": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
         "load_best_model_at_end": True},
    ],
)  # fmt: skip
def test_lora(tmp_path: Path, base: str, options: dict[str, Any]) -> None:
    model = llama()
    adapted = with_lora(quantised(model) if base == "int8" else model, target_modules=["q_proj", "v_proj"])
    trained = train(tmp_path, model=adapted, **options)
    memory = dualform.load(trained.record.path)
    assert memory.coverage.attributed == 1
    assert len(memory.layers) == 8
    assert all("lora_" in layer for layer in memory.layers)
    own = {row["id"] for row in Rows().rows}
    batch = {"input_ids": torch.tensor([[5, 6, 7]])}
    shown = memory.attend(trained.model, batch)[memory.layers[0]].total(by="id")
    assert set(shown["id"].tolist()) == own


def test_an_adapter_on_an_embedding_is_accounted_for(tmp_path: Path) -> None:
    adapted = with_lora(llama(), target_modules=["q_proj", "embed_tokens"])
    coverage = dualform.load(train(tmp_path, model=adapted).record.path).coverage
    assert coverage.attributed > 0.4
    assert coverage.attributed + coverage.accounted == pytest.approx(1)
    assert coverage.snapshots_only == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(tmp_path: Path, reentrant: bool) -> None:
    kwargs = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    train(tmp_path, bf16=True, **kwargs)
    known = {(row["id"], token) for row in Rows().rows for token in [*row["input_ids"], 0]}
    assert set(tokens_by(tmp_path, "id")) <= known


@pytest.mark.parametrize("how", ["by the trainer", "in place before", "wrapped before"])
def test_compiled_models(tmp_path: Path, how: str) -> None:
    torch.compiler.reset()
    options: dict[str, Any] = {"num_train_epochs": 1, "dataset": Rows(ragged=False)}
    model: Any = gpt2()
    if how == "by the trainer":
        options |= {"torch_compile": True, **BACKEND}
    elif how == "in place before":
        model.compile(backend="aot_eager")
    else:  # the trainer cannot see the arguments of the model within
        model, options = torch.compile(model, backend="aot_eager"), options | {"remove_unused_columns": False}
    train(tmp_path, model=model, **options)
    known = {(row["id"], token) for row in Rows(ragged=False).rows for token in row["input_ids"]}
    assert set(tokens_by(tmp_path, "id")) == known


@pytest.mark.parametrize("bf16", [False, True])
def test_noise_on_embeddings(tmp_path: Path, bf16: bool) -> None:
    train(tmp_path, neftune_noise_alpha=5.0, bf16=bf16)


class Average(TrainerCallback):
    """An average of the weights, beside the model, that is evaluated now and then."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(kwargs["model"], multi_avg_fn=average)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.average.update_parameters(kwargs["model"])
        self.average(input_ids=torch.tensor([[5, 6]]), labels=torch.tensor([[5, 6]])).loss.backward()


def test_an_average_beside_the_model(tmp_path: Path) -> None:
    average = Average()
    trained = train(tmp_path, callbacks=[average])
    assert dualform.load(trained.record.path).slots("transformer.wte") == len(tokens_by(tmp_path, "id"))
    assert trained.record.recorder.notes == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in average.average.modules()) or True
