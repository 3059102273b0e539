"""The language models of the paper, from a text to passages behind prompts.

    outcome = reproduce(EXPERIMENTS["charlm"], Settings(), Path("results/charlm"))
    outcome.document["quality"]

The run stays, with the model and the text, so that more prompts can be asked of it later.
"""

from dataclasses import replace
from pathlib import Path
from time import perf_counter

import dualform
from dualform.datasets import corpus as corpora
from dualform.datasets import library, tokens
from dualform.datasets.corpus import Corpus
from dualform.errors import QueryError
from dualform.experiments.language.answers import ask
from dualform.experiments.language.plan import Experiment, Query, Settings, recipe_for
from dualform.experiments.language.quality import measure
from dualform.experiments.language.results import LanguageResults, document, sections
from dualform.experiments.language.training import KEYS, MERGED, VALUES, Recipe, perplexity, train
from dualform.experiments.outcome import Outcome, Stage, per_cent, silent, write
from dualform.experiments.result_files import RUNS
from dualform.text import Text

_MOST = 4 << 30  # bytes for the keys of every visit, beyond which they are summed up

_TOKENS = {"characters": tokens.characters, "words": tokens.words}


def reproduce(experiment: Experiment, settings: Settings, out: Path, stage: Stage = silent) -> Outcome:
    """Train, record, ask; write the results into `out`, and leave the run beside them."""
    corpus = _load(settings, stage)
    text, test = _TOKENS[experiment.level](corpus)
    recipe = recipe_for(experiment, settings)
    queries = _queries(experiment, settings, text)
    kept = _kept(recipe, settings)
    path = out / RUNS / experiment.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with stage("training", recipe.steps) as done:
        trained = train(text, recipe, path, seed=settings.seed, kept=kept, progress=done)
    memory, began = dualform.load(path), perf_counter()
    with stage("asking", len(queries)) as done:
        answers = []
        for number, query in enumerate(queries):
            answers.append(ask(memory, trained.model, text, query.prompt))
            done(number)
    asked = perf_counter()
    with stage("measuring how good the answers are", 1):
        quality = measure(memory, trained.model, text, test, settings.seed)
    seconds = {"training": trained.seconds, "asking": asked - began, "measuring": perf_counter() - asked}
    with stage("certifying", 1):
        certificate = memory.verify() if kept == VALUES else None  # keys alone have none
    facts = memory.summary()
    found = LanguageResults(
        experiment, corpus, text, recipe, kept, certificate, seconds,
        trained.perplexity, perplexity(trained.model, test),
        facts["worst_residual"], facts["bytes"], quality, queries, answers,
    )  # fmt: skip
    return write(out, found.title, document(found), sections(found))


def _load(settings: Settings, stage: Stage) -> Corpus:
    if settings.text is not None:
        return corpora.from_file(settings.text)
    with stage(f"loading {settings.dataset}", 100) as done:
        return library.load(settings.dataset, settings.data, per_cent(done))


def _queries(experiment: Experiment, settings: Settings, text: Text) -> list[Query]:
    """The user's prompts, the paper's, or for a text of the user's own, pieces of it. All have to be readable."""
    for prompt in settings.prompts:
        tokens.encode_prompt(prompt, text)  # a wrong prompt is to be known before the training, not after it
    if settings.prompts:
        return [Query(prompt) for prompt in settings.prompts]
    if settings.text is None and settings.dataset in experiment.queries:
        # Without the full data set, some words of the paper's are unknown.
        known = experiment.queries[settings.dataset]
        return [replace(query, prompt=tokens.with_unknown(query.prompt, text)) for query in known]
    return [Query(_piece(text, share)) for share in (0.25, 0.5, 0.75)]


def _piece(text: Text, share: float) -> str:
    """Some tokens of the training text."""
    start = int(share * len(text))
    return text.shown(start, start + (8 if text.separator else 40))


def _kept(recipe: Recipe, settings: Settings) -> str:
    """What the user wants, else the keys of every visit as long as they do not take too much."""
    if settings.values and settings.merge:
        raise QueryError("values are of single visits: they cannot be kept where visits are summed up")
    merge = not settings.values and _bytes(recipe) > _MOST if settings.merge is None else settings.merge
    return MERGED if merge else VALUES if settings.values else KEYS


def _bytes(recipe: Recipe) -> int:
    """What the keys of every visit take in half precision."""
    return 2 * (recipe.embedding + recipe.hidden) * recipe.batch * recipe.span * recipe.steps
