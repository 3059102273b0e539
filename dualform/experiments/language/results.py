"""Results of a language model, as data and as sections of a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dualform
from dualform.datasets.corpus import Corpus
from dualform.experiments.language.answers import PromptAnswer
from dualform.experiments.language.network import LAYER
from dualform.experiments.language.plan import LanguageExperiment, PromptQuery
from dualform.experiments.language.quality import TOP, Quality
from dualform.experiments.language.training import KEYS, MERGED, VALUES, LanguageHyperparameters
from dualform.experiments.loops import SNAPSHOTS
from dualform.experiments.page import Excerpts, Section
from dualform.text import Text, to_plain

_KEPT = {
    MERGED: "keys summed up over all visits to a position",
    KEYS: "the keys of every visit to a position",
    VALUES: "the keys and values of every visit to a position",
    SNAPSHOTS: "snapshots, from which keys and values of every visit to a position were made again,",
}
_METHODS = {
    "attention": "attention, summed over visits",
    "embedding": "nearest in the input embedding",
    "anywhere": "any position",
}


@dataclass(frozen=True)
class LanguageResults:
    """Everything that is reported about a language model."""

    experiment: LanguageExperiment
    corpus: Corpus
    text: Text
    hparams: LanguageHyperparameters
    kept: str  # merged | keys | values | snapshots
    certificate: dualform.Certificate | None  # of values, stored or made again
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


def document(results: LanguageResults) -> dict[str, Any]:
    """Return the results as data."""
    return {
        "experiment": results.experiment.name,
        "dataset": results.corpus.name,
        "note": results.corpus.note,
        "tokens": len(results.text),
        "vocabulary": len(results.text.vocabulary),
        "recipe": asdict(results.hparams),
        "paper_recipe": asdict(results.experiment.paper),
        "kept": results.kept,
        "merged": results.kept == MERGED,
        "certificate": results.certificate and results.certificate.to_dict(),
        "seconds": dict(results.seconds),
        "perplexity": {
            "training": [list(pair) for pair in results.training_perplexity],
            "test": results.test_perplexity,
        },
        "worst_residual": results.residual,
        "run_bytes": results.bytes,
        "quality": results.quality.to_dict(),
        "queries": [
            {"table": query.table or None, "paper": list(query.paper_passages), **answer.to_dict()}
            for query, answer in zip(results.queries, results.answers, strict=True)
        ],
    }


def sections(results: LanguageResults) -> list[Section]:
    """Return the results as sections of a page."""
    quality = results.quality.to_dict()
    rows = [
        [name, *(f"{100 * quality[method][rate]:.1f}" for rate in ("token", "following"))]
        for method, name in _METHODS.items()
    ]
    text = (
        f"Over {results.quality.queries} queries from the test text: of the {TOP} training positions that come first, "
        "how many per cent have the query's token, and how many are followed by the token the model expects next."
    )
    parts = [
        Section("What was done", _what_was_done(results)),
        Section(
            "Perplexity", "", ("", "here"),
            [
                ["training text, as it was last read", f"{results.training_perplexity[-1][1]:.2f}"],
                ["test text", f"{results.test_perplexity:.2f}"],
            ],
        ),
        Section("How good are the spotlights?", text, ("", "same token", "same next token"), rows),
    ]  # fmt: skip
    for query, answer in zip(results.queries, results.answers, strict=True):
        layer = answer.layers[LAYER]
        excerpts = [Excerpts("Attention summed over all visits to a position", answer.prompt, layer.summed)]
        if layer.single is not None:
            excerpts.append(Excerpts("Attention to single updates", answer.prompt, layer.single))
        expected = ", ".join(f"{token.token!r} ({token.probability:.0%})" for token in answer.expected)
        text = f"The model expects next: {expected}."
        if query.paper_passages:
            text += f"\n\nTable {query.table} of the paper has: {'; '.join(query.paper_passages)}."
        parts.append(Section(f"Query: {to_plain(answer.prompt)}", text, excerpts=excerpts))
    return parts


def _what_was_done(results: LanguageResults) -> str:
    hparams, paper = results.hparams, results.experiment.paper
    dropout = f"dropout {hparams.dropout:g}, " if hparams.dropout else ""
    note = f" {results.corpus.note[0].upper()}{results.corpus.note[1:]}." if results.corpus.note else ""
    certified = f", and {results.certificate.headline}" if results.certificate else ""
    return (
        f"An LSTM of {hparams.hidden} with an embedding of {hparams.embedding} ({len(results.text.vocabulary):,} "
        f"{results.experiment.level}) trained for {hparams.steps:,} steps on {len(results.text):,} of them: "
        f"batches of {hparams.batch}, {hparams.span} steps of back-propagation, {dropout}Adam with learning rate "
        f"{hparams.lr:g}, gradients clipped at norm {hparams.clip:g}.{note} The paper has an LSTM of {paper.hidden} "
        f"and {paper.steps:,} steps. Recorded: {_KEPT[results.kept]} of the map to all gates, whose key is [input, "
        f"previous hidden state], {results.bytes / 1e6:,.0f} MB; every step's gradient was explained to "
        f"{results.residual:.1e}{certified}. A query is the last token of a prompt; attention is summed over all "
        "visits to a position of the training text."
    )
