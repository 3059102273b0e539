"""Reproduce the paper's image experiments, from data to a page of results.

    outcome = reproduce(IMAGE_EXPERIMENTS["single"], ImageOptions(dataset="digits"), Path("results/single"))
    outcome.document["accuracy"]

Each network is trained, recorded, certified and asked; figures are drawn of the first one. A run takes
gigabytes, so it is deleted after its questions are answered, unless the user wants to keep it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from torch import nn

import dualform
from dualform import plots
from dualform.datasets import image_catalogue
from dualform.datasets.images import ImageSet
from dualform.experiments import continual, figures, table1
from dualform.experiments.cases import select_named, select_paper_cases
from dualform.experiments.outcome import Outcome, Stage, per_cent, silent_stage, write
from dualform.experiments.plan import ImageExperiment, ImageOptions, ImagePlan, make_plan, names_of_tasks
from dualform.experiments.result_files import RUNS
from dualform.experiments.results import (
    CAPTIONS,
    VIEWS,
    CaseFigures,
    Illustrations,
    ImageResults,
    NetworkResults,
    document,
)
from dualform.experiments.sections import sections
from dualform.experiments.tasks import tasks
from dualform.experiments.training import TrainedClassifier, predictions, save_test_sets, train


def reproduce(experiment: ImageExperiment, options: ImageOptions, out: Path, stage: Stage = silent_stage) -> Outcome:
    """Train, record, certify, ask and draw; results are written after each network.

    Args:
        experiment: one of IMAGE_EXPERIMENTS.
        options: what the user has chosen.
        out: directory for the results.
        stage: shows the progress of each stage.
    """
    plots.require_matplotlib()
    names = names_of_tasks(experiment, options.dataset)
    plan = make_plan(experiment, options, tasks([_load(name, options.data, stage) for name in names]))
    # Raises for a wrong number now, not after the training: any predictions will do for that.
    select_named(options.index, plan.tasks, [task.test.labels for task in plan.tasks])
    out.mkdir(parents=True, exist_ok=True)
    networks, illustrations = [], Illustrations([])
    for seed in range(options.seeds):
        with _place(out, seed, options.keep_run) as path:
            at = _numbered(stage, seed, options.seeds)
            trained, memory = _train(plan, seed, path, at)
            networks.append(_question(plan, seed, trained, memory, at))
            if seed == 0:
                with at("drawing figures", 1):
                    illustrations = _draw(plan, memory, trained.model, networks[0], out)
        outcome = _written(out, ImageResults(plan, networks, illustrations))
    return outcome


def _load(name: str, data: Path | None, stage: Stage) -> ImageSet:
    with stage(f"loading {name}", 100) as done:
        return image_catalogue.load(name, data, per_cent(done))


@contextmanager
def _place(out: Path, seed: int, keep: bool) -> Iterator[Path]:
    """Yield the path for a run, which is kept or deleted at the end."""
    if keep:
        yield out / RUNS / f"seed-{seed}"
        return
    with TemporaryDirectory(prefix=".run-", dir=out, ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "run"


def _numbered(stage: Stage, seed: int, seeds: int) -> Stage:
    """Return stages whose descriptions say which network they are about."""
    prefix = f"network {seed + 1} of {seeds}: " if seeds > 1 else ""
    return lambda what, steps: stage(prefix + what, steps)


def _train(plan: ImagePlan, seed: int, path: Path, stage: Stage) -> tuple[TrainedClassifier, dualform.Memory]:
    with stage("training", plan.ends[-1]) as done:
        trained = train(plan.phases, plan.hparams, seed=seed, path=path, progress=done)
    if plan.options.keep_run:
        save_test_sets(path, plan.tasks)
    return trained, dualform.load(path)


def _question(
    plan: ImagePlan, seed: int, trained: TrainedClassifier, memory: dualform.Memory, stage: Stage
) -> NetworkResults:
    """Certify a network, and measure on whole test sets what the paper measures."""
    name, model = plan.experiment.name, trained.model
    began = perf_counter()
    with stage("verifying", 1):
        certificate = memory.verify()
    verified = perf_counter()
    with stage("asking about the test set", 1):
        table = table1.measure(memory, model, plan.tasks[0]) if name == "single" else None
        views = continual.accuracies(memory, model, plan.tasks, plan.ends[0]) if name == "continual" else None
    seconds = {"training": trained.seconds, "verifying": verified - began, "asking": perf_counter() - verified}
    return NetworkResults(seed, trained.accuracies, certificate, seconds, table, views)


def _draw(
    plan: ImagePlan, memory: dualform.Memory, model: nn.Module, network: NetworkResults, out: Path
) -> Illustrations:
    """Draw the paper's cases, or those that the user names; and both tasks if one was forgotten."""
    tasks, index = plan.tasks, plan.options.index
    predicted = [predictions(model, task.test.images) for task in tasks]
    if index:
        cases = select_named(index, tasks, predicted)
    else:
        cases = select_paper_cases(plan.experiment.cases, tasks, predicted)
    drawn = [
        CaseFigures(answers.case, figures.draw(answers, tasks, plan.ends, out))
        for answers in figures.ask(memory, model, cases)
    ]
    if network.views is None:
        return Illustrations(drawn)
    mistaken = [case for case in cases if case.task is tasks[0] and case.true != case.predicted]
    matrices = continual.attention_matrices(memory, model, tasks)
    general = {
        "accuracies": plots.accuracies({VIEWS[view]: by_task for view, by_task in network.views.items()}),
        "matrix": plots.attention_matrix(matrices, plots.Tasks({task.name: task.class_names for task in tasks})),
    }
    return Illustrations(
        drawn,
        [figures.save(figure, out, name, CAPTIONS[name]) for name, figure in general.items()],
        [continual.predict_muted(memory, model, case, tasks[1]) for case in mistaken],
        {layer: matrix.tolist() for layer, matrix in matrices.items()},
    )


def _written(out: Path, results: ImageResults) -> Outcome:
    content = document(results)
    return write(out, results.title, content, sections(results, content))
