"""Reproduce the paper's image experiments, from data to a page of results.

    outcome = reproduce(IMAGE_EXPERIMENTS["single"], ImageOptions(dataset="digits"), Path("results/single"))
    outcome.document["accuracy"]

Each network is trained, recorded, certified and asked; figures are drawn of the first one. A run takes
gigabytes, so it is deleted after its questions are answered, unless the user wants to keep it.
"""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import nn

import dualform
from dualform import plots
from dualform.datasets import image_catalogue
from dualform.experiments import continual, figures, table1
from dualform.experiments.cases import select_named, select_paper_cases
from dualform.experiments.loops import CACHE
from dualform.experiments.outcome import Outcome, Stage, per_cent, silent_stage, write
from dualform.experiments.plan import ImageExperiment, ImageOptions, ImagePlan, make_plan, names_of_tasks
from dualform.experiments.recipes import image_recipe, named
from dualform.experiments.result_files import run_directory
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
    sets = []
    for name in names_of_tasks(experiment, options.dataset):
        with stage(f"loading {name}", 100) as done:
            sets.append(image_catalogue.load(name, options.data, per_cent(done)))
    plan = make_plan(experiment, options, tasks(sets))
    # Raises for a wrong number now, not after the training: any predictions will do for that.
    select_named(options.index, plan.tasks, [task.test.labels for task in plan.tasks])
    out.mkdir(parents=True, exist_ok=True)
    networks, illustrations = [], Illustrations([])
    for seed in range(options.seeds):
        prefix = f"network {seed + 1} of {options.seeds}: " if options.seeds > 1 else ""
        with run_directory(out, options.keep_run) as runs:
            path = runs / f"seed-{seed}"
            with stage(f"{prefix}training", plan.ends[-1]) as done:
                trained = train(
                    plan.phases, plan.hparams, seed=seed, path=path, keep=options.keep, about=_named(plan, seed),
                    progress=done,
                )  # fmt: skip
            if options.keep_run:
                save_test_sets(path, plan.tasks)
            memory = dualform.load(path, recipe=trained.recipe, cache=CACHE)
            networks.append(_measure(plan, seed, trained, memory, stage, prefix))
            if seed == 0:
                with stage(f"{prefix}drawing figures", 1):
                    illustrations = _draw(plan, memory, trained.model, networks[0], out)
        results = ImageResults(plan, networks, illustrations)
        content = document(results)
        outcome = write(out, results.title, content, sections(results, content))
    return outcome


def _named(plan: ImagePlan, seed: int) -> Mapping[str, Any]:
    steps = [phase.steps for phase in plan.phases]
    return named(
        image_recipe, experiment=plan.experiment.name, dataset=plan.options.dataset, seed=seed, steps=steps
    )  # fmt: skip


def _measure(
    plan: ImagePlan, seed: int, trained: TrainedClassifier, memory: dualform.Memory, stage: Stage, prefix: str
) -> NetworkResults:
    """Certify a network, and measure on whole test sets what the paper measures; `prefix` begins names of stages."""
    name, model = plan.experiment.name, trained.model
    began = perf_counter()
    with stage(f"{prefix}verifying", 1):
        certificate = memory.verify()
    verified = perf_counter()
    with stage(f"{prefix}asking about the test set", 1):
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
