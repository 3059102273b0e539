"""Reproduce the paper's language models, from a text to passages behind prompts.

    outcome = reproduce(LANGUAGE_EXPERIMENTS["charlm"], LanguageOptions(), Path("results/charlm"))
    outcome.document["quality"]

A run that is kept has the model and the text with it, so that more prompts can be asked later.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import dualform
from dualform.datasets import corpus as corpora
from dualform.datasets import text_catalogue, tokens
from dualform.errors import QueryError
from dualform.experiments.language.answers import ask
from dualform.experiments.language.plan import LanguageExperiment, LanguageOptions, PromptQuery, hyperparameters_for
from dualform.experiments.language.quality import measure
from dualform.experiments.language.results import LanguageResults, document, sections
from dualform.experiments.language.training import KEYS, MERGED, VALUES, LanguageHyperparameters, perplexity, train
from dualform.experiments.loops import CACHE, SNAPSHOTS
from dualform.experiments.outcome import Outcome, Stage, per_cent, silent_stage, write
from dualform.experiments.recipes import language_recipe, named
from dualform.experiments.result_files import run_directory
from dualform.text import Text

_MAX_KEY_BYTES = 4 << 30  # of the keys of every visit; larger ones are summed up


def reproduce(
    experiment: LanguageExperiment, options: LanguageOptions, out: Path, stage: Stage = silent_stage
) -> Outcome:
    """Train, record and ask; write the results.

    Args:
        experiment: one of LANGUAGE_EXPERIMENTS.
        options: what the user has chosen.
        out: directory for the results.
        stage: shows the progress of each stage.
    """
    if options.text is not None:
        corpus = corpora.from_file(options.text)
    else:
        with stage(f"loading {options.dataset}", 100) as done:
            corpus = text_catalogue.load(options.dataset, options.data, per_cent(done))
    text, test = experiment.texts(corpus)
    hparams = hyperparameters_for(experiment, options)
    queries = _queries(experiment, options, text)
    kept = _kept(hparams, options)
    out.mkdir(parents=True, exist_ok=True)
    with run_directory(out, options.keep_run) as runs:
        path = runs / f"seed-{options.seed}"
        with stage("training", hparams.steps) as done:
            about = _named(experiment, hparams, options)
            trained = train(text, hparams, path, seed=options.seed, kept=kept, about=about, progress=done)
        memory, began = dualform.load(path, recipe=trained.recipe, cache=CACHE), perf_counter()
        with stage("asking", len(queries)) as done:
            answers = []
            for number, query in enumerate(queries):
                answers.append(ask(memory, trained.model, text, query.prompt))
                done(number)
        asked = perf_counter()
        with stage("measuring how good the answers are", 1):
            quality = measure(memory, trained.model, text, test, options.seed)
        seconds = {"training": trained.seconds, "asking": asked - began, "measuring": perf_counter() - asked}
        with stage("certifying", 1):
            certificate = memory.verify() if kept in (VALUES, SNAPSHOTS) else None  # keys alone have none
        facts = memory.summary()
    results = LanguageResults(
        experiment, corpus, text, hparams, kept, certificate, seconds,
        trained.perplexity, perplexity(trained.model, test),
        facts["worst_residual"], facts["bytes"], quality, queries, answers,
    )  # fmt: skip
    return write(out, results.title, document(results), sections(results))


def _named(
    experiment: LanguageExperiment, hparams: LanguageHyperparameters, options: LanguageOptions
) -> Mapping[str, Any]:
    """Return what the run says of its recipe: nothing for a text of the user's own, which a run cannot name."""
    if options.text is not None:
        return {}
    return named(
        language_recipe,
        experiment=experiment.name,
        dataset=options.dataset,
        seed=options.seed,
        hidden=hparams.hidden,
    )


def _queries(experiment: LanguageExperiment, options: LanguageOptions, text: Text) -> list[PromptQuery]:
    """Return the user's prompts, the paper's, or for a text of the user's own, pieces of it."""
    for prompt in options.prompts:
        tokens.encode_prompt(prompt, text)  # raises for a wrong prompt now, not after the training
    if options.prompts:
        return [PromptQuery(prompt) for prompt in options.prompts]
    if options.text is None and options.dataset in experiment.queries:
        # Without the full data set, some words of the paper's prompts are unknown.
        known = experiment.queries[options.dataset]
        return [replace(query, prompt=tokens.replace_unknown(query.prompt, text)) for query in known]
    length = 8 if text.separator else 40  # tokens
    starts = [int(share * len(text)) for share in (0.25, 0.5, 0.75)]
    return [PromptQuery(text.excerpt(start, start + length)) for start in starts]


def _kept(hparams: LanguageHyperparameters, options: LanguageOptions) -> str:
    """Return what is recorded: as the user has chosen, or else the keys of every visit unless they are too large."""
    if options.keep == SNAPSHOTS:
        if options.values or options.merge is not None:
            raise QueryError("with --keep snapshots all is made again: leave out --values, --merge and --every-visit")
        return SNAPSHOTS
    if options.values and options.merge:
        raise QueryError("values belong to single visits: choose either --values or --merge")
    keys = (hparams.embedding + hparams.hidden) * hparams.batch * hparams.span * hparams.steps  # numbers
    merge = not options.values and 2 * keys > _MAX_KEY_BYTES if options.merge is None else options.merge
    return MERGED if merge else VALUES if options.values else KEYS
