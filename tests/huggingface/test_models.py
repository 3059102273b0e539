"""Models as people train them: adapters on a frozen or quantised base, checkpointed, compiled, noised, averaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import dualform
from dualform.recorder.drawn import OWN_ORDER
from tests.huggingface.training import VOCABULARY, Rows, gpt2, tokens_by, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),  # of options that it calls by new names
    pytest.mark.filterwarnings("ignore::FutureWarning:peft"),
]


def llama() -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"vocab_size": VOCABULARY, "num_attention_heads": 2, "num_key_value_heads": 1}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes))
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


REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
SAVED = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 3, "eval_steps": 3}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (llama, {"bf16": True}),
        (llama, REENTRANT),
        (lambda: quantised(llama()), {"bf16": True}),
        (lambda: quantised(llama()), {**SAVED, "load_best_model_at_end": True}),
    ],
)
def test_lora(tmp_path: Path, make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    adapted = with_lora(make(), target_modules=["q_proj", "v_proj"])
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
    kwargs: dict[str, Any] = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": reentrant},
    }
    train(tmp_path, bf16=True, **kwargs)
    known = {(row["id"], token) for row in Rows().rows for token in [*row["input_ids"], 0]}
    assert set(tokens_by(tmp_path, "id")) <= known


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # in torch._dynamo
@pytest.mark.parametrize("how", ["by the trainer", "in place before", "wrapped before"])
def test_compiled_models(tmp_path: Path, how: str) -> None:
    torch.compiler.reset()
    options: dict[str, Any] = {"max_steps": 2, "dataset": Rows(ragged=False)}
    model: Any = gpt2(n_layer=1)
    if how == "by the trainer":
        options |= {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    elif how == "in place before":
        model.compile(backend="aot_eager")
    else:  # the trainer cannot see the arguments of the model within
        model, options = torch.compile(model, backend="aot_eager"), options | {"remove_unused_columns": False}
    train(tmp_path, model=model, **options)
    known = {(row["id"], token) for row in Rows(ragged=False).rows for token in row["input_ids"]}
    assert set(tokens_by(tmp_path, "id")) < known


@pytest.mark.parametrize("bf16", [False, True])
def test_noise_on_embeddings(tmp_path: Path, bf16: bool) -> None:
    train(tmp_path, neftune_noise_alpha=5.0, bf16=bf16)


class Average(TrainerCallback):
    """An average of the weights, beside the model, that is called and followed back itself."""

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
    trained = train(tmp_path, callbacks=[Average()], dataset=Rows(ragged=False))
    assert trained.record.recorder.notes == [OWN_ORDER]
    assert len(tokens_by(tmp_path, "id")) == 2 * 22 * 6  # those of the model, not those of its copy
