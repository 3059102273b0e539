"""What was found out about a language model: as data, and as the sections of a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dualform
from dualform.datasets.corpus import Corpus
from dualform.experiments.language.answers import NextToken, PromptAnswer
from dualform.experiments.language.network import LAYER
from dualform.experiments.language.plan import LanguageExperiment, PromptQuery
from dualform.experiments.language.quality import TOP, Quality
from dualform.experiments.language.training import KEYS, MERGED, VALUES, LanguageHyperparameters
from dualform.experiments.page import Excerpts, Section
from dualform.text import Text, to_plain

_KEPT = {
    MERGED: "keys summed up over all visits to a position",
    KEYS: "the keys of every visit to a position",
    VALUES: "the keys and values of every visit to a position",
}
_WAYS = {
    "attention": "attention, summed over visits",
    "embedding": "nearest in the input embedding",
    "anywhere": "any position",
}


@dataclass(frozen=True)
class LanguageResults:
    """Everything there is to tell."""

    experiment: LanguageExperiment
    corpus: Corpus
    text: Text
    hparams: LanguageHyperparameters
    kept: str  # merged | keys | values
    certificate: dualform.Certificate | None  # of a run with values
    seconds: Mapping[str, float]
    training_perplexity: Sequence[tuple[int, float]]
    test_perplexity: float
    residual: float
    bytes: int
    quality: Quality
    queries: Sequence[PromptQuery]
    answers: Sequence[PromptAnswer]

    @property
    def title(self) -> str:
        return f"{self.experiment.title} on {self.corpus.name}"


def document(found: LanguageResults) -> dict[str, Any]:
    """The findings as data."""
    return {
        "experiment": found.experiment.name,
        "dataset": found.corpus.name,
        "note": found.corpus.note,
        "tokens": len(found.text),
        "vocabulary": len(found.text.vocabulary),
        "recipe": asdict(found.hparams),
        "paper_recipe": asdict(found.experiment.paper),
        "merged": found.kept == MERGED,
        "certificate": found.certificate and found.certificate.to_dict(),
        "seconds": dict(found.seconds),
        "perplexity": {"training": [list(pair) for pair in found.training_perplexity], "test": found.test_perplexity},
        "worst_residual": found.residual,
        "run_bytes": found.bytes,
        "quality": found.quality.to_dict(),
        "queries": [
            {"table": query.table or None, "paper": list(query.found), **answer.to_dict()}
            for query, answer in zip(found.queries, found.answers, strict=True)
        ],
    }


def sections(found: LanguageResults) -> list[Section]:
    """The findings as a page."""
    asked = [_query_section(query, answer) for query, answer in zip(found.queries, found.answers, strict=True)]
    return [
        Section("What was done", _what_was_done(found)),
        Section(
            "Perplexity", "", ("", "here"),
            [
                ["training text, as it was last read", f"{found.training_perplexity[-1][1]:.2f}"],
                ["test text", f"{found.test_perplexity:.2f}"],
            ],
        ),
        _quality_section(found.quality),
        *asked,
    ]  # fmt: skip


def _what_was_done(found: LanguageResults) -> str:
    hparams, paper = found.hparams, found.experiment.paper
    dropout = f"dropout {hparams.dropout:g}, " if hparams.dropout else ""
    note = f" {found.corpus.note[0].upper()}{found.corpus.note[1:]}." if found.corpus.note else ""
    certified = f", and {found.certificate.headline}" if found.certificate else ""
    return (
        f"An LSTM of {hparams.hidden} with an embedding of {hparams.embedding} ({len(found.text.vocabulary):,} "
        f"{found.experiment.level}) trained for {hparams.steps:,} steps on {len(found.text):,} of them: "
        f"batches of {hparams.batch}, {hparams.span} steps of back-propagation, {dropout}Adam with learning rate "
        f"{hparams.lr:g}, gradients clipped at norm {hparams.clip:g}.{note} The paper has an LSTM of {paper.hidden} "
        f"and {paper.steps:,} steps. Recorded: {_KEPT[found.kept]} of the map to all gates, whose key is [input, "
        f"previous hidden state], {found.bytes / 1e6:,.0f} MB; every step's gradient was explained to "
        f"{found.residual:.1e}{certified}. A query is the last token of a prompt; attention is summed over all visits "
        "to a position of the training text."
    )


def _quality_section(quality: Quality) -> Section:
    content = quality.to_dict()
    rows = [[name, *(f"{100 * content[way][of]:.1f}" for of in ("token", "following"))] for way, name in _WAYS.items()]
    text = (
        f"Over {quality.queries} queries from the test text: of the {TOP} training positions that come first, how many "
        "per cent have the query's token, and how many are followed by the token the model expects next."
    )
    return Section("How good are the spotlights?", text, ("", "same token", "same next token"), rows)


def _query_section(query: PromptQuery, answer: PromptAnswer) -> Section:
    layer = answer.layers[LAYER]
    excerpts = [Excerpts("Attention summed over all visits to a position", answer.prompt, layer.summed)]
    if layer.single is not None:
        excerpts.append(Excerpts("Attention to single updates", answer.prompt, layer.single))
    text = f"The model expects next: {', '.join(_said(one) for one in answer.expected)}."
    if query.found:
        text += f"\n\nTable {query.table} of the paper has: {'; '.join(query.found)}."
    return Section(f"Query: {to_plain(answer.prompt)}", text, excerpts=excerpts)


def _said(expected: NextToken) -> str:
    return f"{expected.token!r} ({expected.probability:.0%})"
