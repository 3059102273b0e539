"""What a language model attends to after a prompt: passages of its training text.

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
    """Passages of one layer, best first; single updates are unknown to a merged memory."""

    summed: list[Passage]
    single: list[Passage] | None


@dataclass(frozen=True)
class NextToken:
    """A token that may come next."""

    token: str
    probability: float


@dataclass(frozen=True)
class PromptAnswer:
    """A prompt, what the model expects next, and what is in the spotlight of its last token."""

    prompt: Passage
    expected: list[NextToken]
    layers: dict[str, LayerPassages]

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": list(self.prompt.tokens),
            "expected": [asdict(one) for one in self.expected],
            "layers": {name: _plain(answer) for name, answer in self.layers.items()},
        }


def _plain(answer: LayerPassages) -> dict[str, Any]:
    single = None if answer.single is None else [one.to_dict() for one in answer.single]
    return {"summed": [one.to_dict() for one in answer.summed], "single": single}


def ask(
    memory: dualform.Memory,
    model: nn.Module,
    text: Text,
    prompt: str,
    most: int = 3,
    layers: Sequence[str] | None = None,
) -> PromptAnswer:
    """The `most` passages with the highest attention, of each layer or of those named."""
    if POSITION not in memory.tags:
        raise QueryError(f"the run has no tag {POSITION!r}: record it with recorder.tag({POSITION}=...), one a token")
    ids = encode_prompt(prompt, text)
    tokens = torch.from_numpy(ids)[None]  # (1, time)
    spotlight = memory.attend(model, tokens, rows=-1)
    summed, single = dualform.Top(_HITS_PER_PASSAGE * most, per=POSITION), dualform.Top(_HITS_PER_PASSAGE * most)
    found = {}
    for name in layers or spotlight:
        merged = memory.merged_by is not None
        tables = spotlight[name].collect(*([summed] if merged else [summed, single]))
        shown = [passages(text, table, most) for table in (tables[0].without("step"), *tables[1:])]
        found[name] = LayerPassages(shown[0], None if merged else shown[1])
    shown_prompt = prompt_passage([text.vocabulary[number] for number in ids.tolist()], text.separator)
    return PromptAnswer(shown_prompt, _likeliest(model, tokens, text), found)


def next_logits(model: nn.Module, prompts: Tensor) -> Tensor:
    """What a model says of the token after each prompt: (prompts, vocabulary)."""
    model.eval()
    with torch.no_grad():
        output = model(prompts)
    logits: Tensor = output[0] if isinstance(output, tuple) else output  # (prompts, time, vocabulary)
    return logits[:, -1].float()


def _likeliest(model: nn.Module, prompt: Tensor, text: Text) -> list[NextToken]:
    best = torch.softmax(next_logits(model, prompt)[0], dim=0).topk(min(_MAX_NEXT_TOKENS, len(text.vocabulary)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [NextToken(text.vocabulary[number], probability) for number, probability in pairs]
