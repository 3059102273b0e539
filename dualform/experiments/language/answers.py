"""Find the passages of its training text that a language model attends to after a prompt.

    answer = ask(memory, model, text, "the Lamb a little d")
    answer.expected                          # the likeliest next tokens, with their probabilities
    answer.layers["lstm.l0"].summed          # passages, attention summed over all visits to a position

The query is the last token of the prompt, which the model reads from an empty state.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dualform
from dualform.datasets.tokens import encode_prompt
from dualform.errors import QueryError
from dualform.text import Passage, Text, passages, prompt_passage

POSITION = "position"
_HITS_PER_PASSAGE = 10  # positions for each passage shown: neighbours are merged
_MAX_NEXT_TOKENS = 5


@dataclass(frozen=True)
class LayerPassages:
    """Passages of one layer, best first."""

    summed: list[Passage]  # attention summed over all visits to a position
    single: list[Passage] | None  # attention to single updates, which a merged memory does not have

    def to_dict(self) -> dict[str, Any]:
        single = None if self.single is None else [passage.to_dict() for passage in self.single]
        return {"summed": [passage.to_dict() for passage in self.summed], "single": single}


@dataclass(frozen=True)
class NextToken:
    """A token that may come next."""

    token: str
    probability: float


@dataclass(frozen=True)
class PromptAnswer:
    """A prompt, the tokens that the model expects next, and the passages behind the prompt's last token."""

    prompt: Passage
    expected: list[NextToken]
    layers: dict[str, LayerPassages]

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": list(self.prompt.tokens),
            "expected": [asdict(token) for token in self.expected],
            "layers": {name: layer.to_dict() for name, layer in self.layers.items()},
        }


def ask(
    memory: dualform.Memory,
    model: nn.Module,
    text: Text,
    prompt: str,
    most: int = 3,
    layers: Sequence[str] | None = None,
) -> PromptAnswer:
    """Return the passages with the highest attention.

    Args:
        memory: of a language model's run, with the tag `position`.
        model: as it was trained.
        text: that it was trained on.
        prompt: whose last token is the query.
        most: maximum number of passages for each layer.
        layers: names of layers, by default all.
    """
    if POSITION not in memory.tags:
        raise QueryError(
            f"the run has no tag {POSITION!r}: record the position of each token with recorder.tag({POSITION}=...)"
        )
    ids = encode_prompt(prompt, text)
    tokens = torch.from_numpy(ids)[None]  # (1, time)
    spotlight = memory.attend(model, tokens, rows=-1)
    summed, single = dualform.Top(_HITS_PER_PASSAGE * most, per=POSITION), dualform.Top(_HITS_PER_PASSAGE * most)
    by_layer = {}
    for name in layers or spotlight:
        merged = memory.merged_by is not None
        tables = spotlight[name].collect(*([summed] if merged else [summed, single]))
        ranked = [passages(text, table, most) for table in (tables[0].without("step"), *tables[1:])]
        by_layer[name] = LayerPassages(ranked[0], None if merged else ranked[1])
    query = prompt_passage([text.vocabulary[number] for number in ids.tolist()], text.separator)
    probabilities = torch.softmax(next_logits(model, tokens)[0], dim=0)  # (vocabulary,)
    likeliest = probabilities.topk(min(_MAX_NEXT_TOKENS, len(text.vocabulary)))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    expected = [NextToken(text.vocabulary[number], probability) for number, probability in pairs]
    return PromptAnswer(query, expected, by_layer)


def next_logits(model: nn.Module, prompts: Tensor) -> Tensor:
    """Return a model's logits for the token after each prompt, (prompts, vocabulary)."""
    model.eval()
    with torch.no_grad():
        output = model(prompts)
    logits: Tensor = output[0] if isinstance(output, tuple) else output  # (prompts, time, vocabulary)
    return logits[:, -1].float()
