"""Train convolutional networks, record them, and ask what they attend to: from data to a page of results.

    outcome = reproduce(CnnOptions(dataset="digits"), Path("results/cifar"))
    outcome.document["accuracy"]

Of each seed there are two networks: one learns all classes, the other one half of them after the other. Runs take
gigabytes, so they are deleted after their questions are answered, unless the user wants to keep them.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor

import dualform
from dualform import plots
from dualform.datasets import image_catalogue
from dualform.experiments import continual, table1
from dualform.experiments.cases import select_named, select_paper_cases
from dualform.experiments.cifar.answers import attended_classes, nearest_means
from dualform.experiments.cifar.figures import draw
from dualform.experiments.cifar.plan import CnnOptions, CnnPlan, dataset_of, make_plan
from dualform.experiments.cifar.results import CnnIllustrations, CnnNetworkResults, CnnResults, document, sections
from dualform.experiments.cifar.training import TrainedCnn, TrainedInTurn, train, train_in_turn
from dualform.experiments.figures import save
from dualform.experiments.loops import CACHE, one_thread
from dualform.experiments.outcome import Outcome, Stage, per_cent, silent_stage, write
from dualform.experiments.recipes import convolutional_recipe, named
from dualform.experiments.result_files import run_directory
from dualform.experiments.results import CAPTIONS, VIEWS
from dualform.experiments.tasks import Task
from dualform.experiments.training import predictions
from dualform.inputs import save_inputs


def reproduce(options: CnnOptions, out: Path, stage: Stage = silent_stage) -> Outcome:
    """Train, record, certify, ask and draw; results are written after each seed.

    Args:
        options: what the user has chosen.
        out: directory for the results.
        stage: shows the progress of each stage.
    """
    plots.require_matplotlib()
    dataset = dataset_of(options)
    with stage(f"loading {dataset.name}", 100) as done:
        images = image_catalogue.load(dataset.name, options.data, per_cent(done))
    plan = make_plan(options, images)
    # Raises for a wrong number now, not after the training: any predictions will do for that.
    select_named(options.index, [plan.task], [plan.task.test.labels])
    out.mkdir(parents=True, exist_ok=True)
    networks, illustrations = list[CnnNetworkResults](), CnnIllustrations()
    for seed in range(options.seeds):
        prefix = f"seed {seed + 1} of {options.seeds}: " if options.seeds > 1 else ""
        with (
            one_thread() if plan.hparams.small else nullcontext(),
            run_directory(out, options.keep_run) as directory,
        ):
            runs = directory / f"seed-{seed}"
            runs.mkdir(exist_ok=True)
            with stage(f"{prefix}training", plan.steps) as done:
                trained = train(
                    plan.task, plan.hparams, plan.steps, seed=seed, runs=runs, keep=options.keep,
                    named=partial(_named, options, plan.steps, seed), progress=done,
                )  # fmt: skip
            with stage(f"{prefix}training on one half after the other", 2 * plan.steps_in_turn) as done:
                in_turn = train_in_turn(
                    plan.parts, plan.hparams, plan.steps_in_turn, seed=seed, runs=runs, keep=options.keep,
                    named=partial(_named, options, plan.steps_in_turn, seed), progress=done,
                )  # fmt: skip
            if options.keep_run:
                _save_test_sets(plan, trained, in_turn)
            with stage(f"{prefix}verifying, and asking about the test set", 1):
                memories = _Memories.of(trained, in_turn)
                networks.append(_measure(plan, seed, trained, in_turn, memories))
            if seed == 0:
                with stage(f"{prefix}drawing figures", 1):
                    illustrations = _draw(plan, trained, memories, networks[0], out)
        results = CnnResults(plan, networks, illustrations)
        content = document(results)
        outcome = write(out, results.title, content, sections(results, content))
    return outcome


def _named(options: CnnOptions, steps: int, seed: int, training: str) -> Mapping[str, Any]:
    return named(
        convolutional_recipe, training=training, dataset=options.dataset, seed=seed, steps=steps
    )  # fmt: skip


@dataclass(frozen=True)
class _Memories:
    """The runs of a seed, opened."""

    whole: dualform.Memory
    last_epoch: dualform.Memory
    turns: dualform.Memory

    @classmethod
    def of(cls, trained: TrainedCnn, in_turn: TrainedInTurn) -> Self:
        return cls(
            dualform.load(trained.whole, recipe=trained.recipe),
            dualform.load(trained.last_epoch, recipe=trained.of_last_epoch, cache=CACHE),  # asked most often
            dualform.load(in_turn.run, recipe=in_turn.recipe),
        )


def _measure(
    plan: CnnPlan, seed: int, trained: TrainedCnn, in_turn: TrainedInTurn, memories: _Memories
) -> CnnNetworkResults:
    """Certify both networks, and ask about whole test sets."""
    whole, last_epoch, turns = memories.whole, memories.last_epoch, memories.turns
    began, test = perf_counter(), plan.task.test
    output, target = predictions(trained.model, test.images).numpy(), test.labels.numpy()

    def agreements(classes: dict[str, table1.Classes]) -> dict[str, table1.Agreement]:
        return {layer: table1.agreement(attended, output, target) for layer, attended in classes.items()}

    of_whole, of_last_epoch = (
        agreements(attended_classes(memory, trained.model, test.images)) for memory in (whole, last_epoch)
    )
    seconds = {"all classes": trained.seconds, "halves": in_turn.seconds, "asking": perf_counter() - began}
    runs = {"all classes": whole, "last epoch": last_epoch, "halves": turns}
    return CnnNetworkResults(
        seed=seed,
        accuracy=trained.accuracy,
        whole=of_whole,
        last_epoch=of_last_epoch,
        nearest_mean=agreements(nearest_means(trained.model, plan.task)),
        views=continual.accuracies(turns, in_turn.model, plan.parts, plan.steps_in_turn),
        after_first=in_turn.accuracies[0],
        coverage=str(turns.coverage),
        not_recorded=trained.not_recorded,
        certificates={"all classes": whole.verify(), "halves": turns.verify()},
        run_bytes={name: memory.summary()["bytes"] for name, memory in runs.items()},
        seconds=seconds,
    )


def _draw(
    plan: CnnPlan, trained: TrainedCnn, memories: _Memories, network: CnnNetworkResults, out: Path
) -> CnnIllustrations:
    """Draw the planned test inputs, or those that the user names; and what was forgotten."""
    task, predicted = plan.task, [predictions(trained.model, plan.task.test.images)]
    if plan.options.index:
        cases = select_named(plan.options.index, [task], predicted)
    else:
        cases = select_paper_cases(plan.dataset.cases, [task], predicted)
    drawn = draw(memories.last_epoch, trained.model, task, cases, out)
    forgotten = plots.accuracies({VIEWS[view]: by_task for view, by_task in network.views.items()})
    return CnnIllustrations(drawn, [save(forgotten, out, "accuracies", CAPTIONS["accuracies"])])


def _save_test_sets(plan: CnnPlan, trained: TrainedCnn, in_turn: TrainedInTurn) -> None:
    """Save test inputs for later questions to runs that are kept; in grey, as people see them there."""
    for run, tasks in ((trained.whole, [plan.task]), (trained.last_epoch, [plan.task]), (in_turn.run, plan.parts)):
        save_inputs(
            run,
            inputs=torch.cat([part.test.images for part in tasks]),
            labels=torch.cat([part.test.labels for part in tasks]),
            tasks=torch.cat([torch.full_like(part.test.labels, number) for number, part in enumerate(tasks)]),
            images=torch.cat([_grey(part.test.raw, part) for part in tasks]),
            training_images=torch.cat([_grey(part.train.raw, part) for part in tasks]),
        )


def _grey(raw: Tensor, task: Task) -> Tensor:
    """Return the mean over colours, (n, height * width)."""
    channels = task.train.images.shape[1]
    return raw if channels == 1 else raw.reshape(len(raw), channels, -1).float().mean(dim=1).to(torch.uint8)
