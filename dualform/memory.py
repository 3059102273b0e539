"""Open a recorded run for questions: `memory = dualform.load("runs/mnist")`.

    memory.attend(model, images)["layers.2"].top(10)      # which training slots are in the spotlight
    memory.without(label=9).model(model)                  # the model with some of its experience muted
    memory.verify()                                       # how exact all of this is

A view (`where`, `without`, `until`) is a memory of some of the slots, and has the same interface.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from dualform.attention.directions import Target, directions
from dualform.attention.folds import CountFold, VisitsFold
from dualform.attention.index import Index, Sketches
from dualform.attention.input_rows import InputRows
from dualform.attention.plan import Sources
from dualform.attention.queries import as_queries, queries_of
from dualform.attention.spotlight import LayerSpotlight, Spotlight
from dualform.dual.account import accounted, snapshots_only
from dualform.dual.account import certify as certify_accounted
from dualform.dual.certificate import Certificate, verify
from dualform.dual.coefficients import Ledger
from dualform.dual.group_weights import GroupWeight, GroupWeights, check_memory, groups_of
from dualform.dual.models import assembled, check_fits
from dualform.dual.rebuilt import named_parameters
from dualform.dual.state import difference, stored_parameter
from dualform.dual.strategy import Duals
from dualform.engine import Fold, Plan, carry_out, in_one_pass
from dualform.errors import NotRecorded, QueryError, RecipeError, UnknownName, listing
from dualform.influence import ask
from dualform.influence.calibrate import Calibration, calibrate
from dualform.influence.calibrate import Plan as CalibrationPlan
from dualform.influence.result import Influence
from dualform.influence.suspects import suspects
from dualform.kinds import check_kinds, match_modules, names
from dualform.recipe import Recipe
from dualform.recipe.replay import TrainedAgain
from dualform.recipe.retrain import Weights, recipe_of, retrain, retrain_recorded, seconds_to_retrain
from dualform.recipe.sizes import nbytes_of
from dualform.slots import By, Selection, View, checked_by, condition
from dualform.store import Parameter, Run, Shard, Where, summary, summary_lines
from dualform.store.coverage import Coverage
from dualform.store.schema import MANIFEST, STATE_PARAMETERS
from dualform.table import Table

T = TypeVar("T")


def load(path: Where, recipe: Recipe | None = None, cache: int | str = "2 GB") -> "Memory":
    """Open a recorded run: `memory = dualform.load("runs/mnist")`. Reads headers, not data.

    Of a damaged run, what comes before the damage is opened, with a warning.

    Args:
        path: The run's directory, or a backend.
        recipe: The recipe that it was trained by. Slots that are not stored are made again by it, when they are asked
            for, and `retrain` trains without some examples.
        cache: How much of what was made again is kept for the next question, in bytes or as "20 GB"; the oldest goes
            first.

    Returns:
        The memory, for questions and views.
    """
    if not isinstance(recipe, Recipe | None):
        raise RecipeError(
            f"recipe must be the dualform.Recipe that the run was trained by, not {type(recipe).__name__}"
        )
    run = Run(path, None if recipe is None else partial(TrainedAgain, recipe, nbytes_of(cache)))
    if run.unread:
        warnings.warn(f"{run.unread}; what comes after step {run.steps} is left out", stacklevel=2)
    return Memory(run)


class Memory:
    """A run, or a view of one. Made by `dualform.load`."""

    def __init__(
        self,
        run: Run,
        selection: Selection | None = None,
        ledger: Ledger | None = None,
        sketches: Sketches | None = None,
    ) -> None:
        if selection is None:
            check_kinds(run.manifest, run.backend.describe(MANIFEST))
        self._run = run
        self._selection = selection or Selection(run.steps)
        view = View(run, self._selection)
        duals = Duals(view, ledger or Ledger(run))
        self._sources = Sources(view, duals, Index(view, sketches or Sketches(run)))
        self._certificate: Certificate | None = None

    # What there is

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self._run.path

    @property
    def layers(self) -> list[str]:
        """Names of the recorded layers."""
        return list(self._run.layers)

    @property
    def steps(self) -> int:
        """Steps of the run, or of the view."""
        return self._selection.until

    @property
    def tags(self) -> dict[str, str]:
        """Names of the tags, with the kind of each: int, float, bool or string."""
        return dict(self._run.tags)

    @property
    def about(self) -> dict[str, Any]:
        """What was said of the run when it was recorded."""
        return dict(self._run.manifest.about)

    @property
    def merged_by(self) -> str | None:
        """The tag over whose visits keys were summed up; None: every slot is there."""
        return self._run.manifest.storage.merge

    def slots(self, layer: str) -> int:
        """Return how many slots of a layer this memory, or view, holds."""
        self._check_layer(layer)
        count: int = self._folded(layer, CountFold())
        return count

    def visits(self, layer: str, by: By) -> Table:
        """Count a layer's slots by a tag: `memory.visits("layers.2", by="task")`.

        Args:
            layer: The layer's name.
            by: A tag, or a tuple of them.

        Returns:
            A row for each value that slots of this memory, or view, have, with visits, first and last step. The
            steps of a merged memory are those of its sums.
        """
        self._check_layer(layer)
        return Table(self._folded(layer, VisitsFold(self._sources.view.grouping(layer, checked_by(by)))))

    def _folded(self, layer: str, fold: Fold) -> Any:
        return carry_out(Plan(self._sources.view.slots(layer), self._selection, (fold,)))[0]

    @property
    def coverage(self) -> Coverage:
        """Which share of the trainable parameters this run holds, and how: `print(memory.coverage)`."""
        return self._run.coverage

    @property
    def notes(self) -> list[str]:
        """What its recorder could not prove, or found not as expected."""
        return self._run.notes

    @property
    def unrecorded(self) -> list[str]:
        """Parameters that are in the snapshots but in no recorded layer: views cannot mute them."""
        recorded = {parameter.name for parameter in self._run.parameters}
        stored = self._run.shards[0].names(STATE_PARAMETERS)
        names = (name.removeprefix(STATE_PARAMETERS) for name in stored)
        return sorted(name for name in names if name not in recorded)

    # Views

    def where(self, /, **tags: Any) -> "Memory":
        """Return a view of only the slots with these tags: `memory.where(task="mnist", label=[3, 5])`.

        Args:
            tags: Tags with a value, or a list of values; also `step=` and `slot=`.
        """
        return self._view(self._selection.narrowed(condition(self._run, tags, inverted=False)))

    def without(self, /, **tags: Any) -> "Memory":
        """Return a view of all slots but those with these tags: `memory.without(label=9)`.

        The slots are muted, which is not the same as training without them: errors are those of the run as it was.

        Args:
            tags: Tags with a value, or a list of values; also `step=` and `slot=`.
        """
        return self._view(self._selection.narrowed(condition(self._run, tags, inverted=True)))

    def until(self, step: int) -> "Memory":
        """Return the run after `step` steps: its slots, with the coefficients they had then."""
        if not 0 <= step <= self._selection.until:
            raise QueryError(f"step must be between 0 and {self._selection.until}, not {step}")
        ends = [shard.info.last_step for shard in self._run.shards]
        if self.merged_by and step not in ends:
            raise NotRecorded(f"a merged memory can go back to where it was synced only: steps {listing(ends)}")
        return self._view(Selection(step, self._selection.conditions))

    def _view(self, selection: Selection) -> "Memory":
        return Memory(self._run, selection, self._sources.duals.ledger, self._sources.index.sketches)

    # Questions

    def attend(
        self, model: nn.Module | Mapping[str, Tensor], inputs: Any = None, *, rows: int | slice | None = None
    ) -> Spotlight:
        """Return the spotlight of test inputs: `memory.attend(model, images)`.

        The model runs once, in eval mode and without gradients, to get each layer's queries.

        Args:
            model: The model, used as it is: pass `view.model(model)` for the queries of a muted model. Or, instead of
                a model and inputs, a dict of queries: `memory.attend({"layers.2": q})`.
            inputs: What the model is called with; a dict as keyword arguments, a tuple as positional ones.
            rows: Which rows of each input to ask about, such as the last token: `rows=-1`. Whose a row is, is found
                out as in training, for any layout; of inputs with one row in a layer, that row is taken.

        Returns:
            A spotlight for each recorded layer, by its name.
        """
        if not isinstance(model, nn.Module):
            prepared = as_queries(self._sources.view, model)
            return Spotlight({name: LayerSpotlight(self._sources, name, q, None, None) for name, q in prepared.items()})
        input_rows = InputRows(model, self._run.layers, inputs, rows)
        prepared = as_queries(self._sources.view, queries_of(model, self._run.layers, inputs, input_rows))
        find_directions = partial(directions, model, self._run.layers, inputs, input_rows)
        notes = [difference(self._run, model), None if rows is None else input_rows.note]
        layers = {
            name: LayerSpotlight(self._sources, name, queries, find_directions, input_rows)
            for name, queries in prepared.items()
        }
        return Spotlight(layers, "; ".join(note for note in notes if note) or None)

    def weights(self, layer: str) -> dict[str, Tensor]:
        """Return a layer's parameters, summed up from the initial part and the slots of this view."""
        self._check_layer(layer)
        return self._sum_up(layer, self._run.shards[0])

    def added(self, layer: str) -> dict[str, Tensor]:
        """Return what the slots of this view have added to a layer's trained parameters, in float64."""
        self._check_layer(layer)
        described = self._run.layers[layer]
        rebuilt = self._sources.duals.of(layer).rebuild(self._run.shards[0])
        return named_parameters(described, {use: rebuilt[use].slots for use in described.trained})

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return a model's recorded parameters by their names in the run: `memory.parameters(model)["fc.weight"]`.

        Names are those of `weights` and `added`, also where torch.compile or a parallel wrapper has put something
        before the model's own.
        """
        match_modules(model, self._run.layers)
        named = dict(names.named_parameters(model, remove_duplicate=False))
        return {parameter.name: named[parameter.name] for parameter in self._run.parameters}

    def group_weights(
        self,
        by: By = ("task", "label"),
        progress: Callable[[str], None] = lambda layer: None,
        *,
        max_bytes: int = 2 << 30,
    ) -> GroupWeights:
        """Sum up what each group of slots has added: `memory.group_weights(by="label").model(model, without=[9])`.

        Reads all slots once; from then on, to mute any set of groups is to subtract their matrices.

        Args:
            by: A tag, or a tuple of them.
            progress: Called with each layer's name as its turn comes.
            max_bytes: What the result may take: a copy of the recorded parameters for each group. Raises at once if
                it would take more.
        """
        duals = {name: self._sources.duals.of(name) for name in self._run.layers}  # raises where there are keys only
        grouping = groups_of(self._run, by)
        check_memory(self._run, grouping, max_bytes)

        def summed_up(name: str) -> Mapping[Parameter, GroupWeight]:
            progress(name)
            return duals[name].group_weights(grouping)

        weights = self._of_layers(summed_up)
        return GroupWeights(Table(grouping.columns()), weights, self._assemble, summed_up=self._is_summed_up())

    def model(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model with the parameters of this view: `memory.without(label=9).model(model)`.

        With all slots up to a step, the nearest snapshot before it serves as the start; a view that leaves slots out
        is summed up from the beginning.

        Args:
            model: The architecture; its own parameters are not used.
        """
        match_modules(model, self._run.layers)  # before anything is read
        start = self._run.shards[0] if self._selection.conditions else self._snapshot
        parameters: dict[str, Tensor] = {}
        if self._is_summed_up():
            for summed_up in self._of_layers(lambda name: self._sum_up(name, start)).values():
                parameters |= summed_up
        if self.note:
            warnings.warn(self.note, stacklevel=2)
        return self._assemble(model, parameters)

    def _of_layers(self, ask: Callable[[str], T]) -> dict[str, T]:
        """Return an answer for each layer; where slots are made again, all of one training."""
        names = list(self._run.layers)
        return dict(zip(names, in_one_pass(self._run, [partial(ask, name) for name in names]), strict=True))

    def check_model(self, model: nn.Module) -> None:
        """Raise unless a model, which may be on the meta device, has the layers, names and shapes of this run."""
        check_fits(self._run, self._snapshot, model)

    def _assemble(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
        """Copy a model, with these parameters, and with everything else as it was when the view ends."""
        rest = accounted(self._run, self._snapshot, self._selection.until)
        return assembled(self._run, self._snapshot, model, {**rest, **parameters})

    @property
    def note(self) -> str | None:
        """What in the models of this view is not as it was at its last step; None: nothing, as far as is known."""
        last = self._snapshot.info.last_step
        if last == self._selection.until:
            return None
        names = snapshots_only(self._run)
        if not names:
            return None
        return (
            f"at step {self._selection.until:,}, what no layer records and is too large to account for is as it was "
            f"at step {last:,}: {listing(names, most=5)}"
        )

    @property
    def _snapshot(self) -> Shard:
        """The last snapshot before the view ends."""
        return self._run.snapshot(self._selection.until)

    def _is_summed_up(self) -> bool:
        """Return whether the parameters of this view are in no snapshot."""
        return bool(self._selection.conditions) or self._snapshot.info.last_step < self._selection.until

    def _sum_up(self, layer: str, start: Shard) -> dict[str, Tensor]:
        rebuilt = self._sources.duals.of(layer).rebuild(start)
        whole = {use: parameter.whole for use, parameter in rebuilt.items()}
        dtypes = {use.parameter.name: stored_parameter(start, use.parameter).dtype for use in rebuilt}
        named = named_parameters(self._run.layers[layer], whole)
        return {name: tensor.to(dtypes[name]) for name, tensor in named.items()}

    def influence(
        self,
        model: nn.Module,
        inputs: Any,
        target: Target = None,
        *,
        of: str = "margin",
        method: str = "fast",
        around: float | Sequence[float] = 1.0,
        rows: int | slice | None = None,
        max_bytes: int = 4 << 30,
        progress: Callable[[int, int], None] = lambda step, steps: None,
    ) -> Influence:
        """Say what outputs would have been without an example: `memory.influence(model, images).top(10)`.

        "fast" estimates it from the recording alone. "exact" follows outputs back through the whole training, which
        takes the recipe, and several trainings. How well each predicts one without examples, `calibrate` measures.

        Args:
            model: The model as the memory ends with it.
            inputs: What it is called with, as for `attend`.
            target: A class, or one for each input; None: the one that the model predicts.
            of: "margin" (the logit of the target, less the log of the sum of exp of all others), "logit", or "loss".
            method: "fast" or "exact".
            around: Of "exact", the weights that examples have in the training that is followed back: 1, as they were.
                When many examples are taken out, 1/2 is nearer; (1, 0.5) is the mean of both.
            rows: Which rows of each input, such as the last token: `rows=-1`.
            max_bytes: What scores of all visits to examples may take.
            progress: Called with the number of steps that were followed back, and of all.

        Returns:
            One object for the whole network: `top`, `total`, `timeline`, and `of(without=...)`.
        """
        wanted, by = ask.Wanted(target, of, rows), ask.Method(method, around, max_bytes, progress)
        return ask.influence(self._sources.view, model, inputs, wanted, by)

    def calibrate(
        self,
        model: nn.Module,
        inputs: Any,
        target: Target = None,
        *,
        of: str = "margin",
        rows: int | slice | None = None,
        drop: float = 0.05,
        runs: int = 16,
        methods: Sequence[str] = ("attention", "contribution", "muting", "fast"),
        seed: int = 0,
        progress: Callable[[int, int], None] = lambda run, runs: None,
    ) -> Calibration:
        """Measure how well each method predicts retraining, on this very run: `memory.calibrate(model, images)`.

        Trains again without examples drawn at random, and compares. What came out is kept beside the run.

        Args:
            model: The model as the memory ends with it.
            inputs: What it is called with; their outputs are compared.
            target: As for `influence`; so are `of` and `rows`.
            drop: The share of examples that each training is without.
            runs: How many trainings.
            methods: "attention", "contribution", "muting", "fast", "exact": the last two are `influence`.
            seed: Of the examples that are left out.
            progress: Called with the number of trainings that are done, and of all.

        Returns:
            `table` and `figure()`.
        """
        wanted, plan = ask.Wanted(target, of, rows), CalibrationPlan(drop, runs, tuple(methods), seed)
        return calibrate(self, self._sources.view, model, inputs, wanted, plan, progress)

    def suspects(self, k: int = 10) -> Table:
        """Return the training examples whose label is probably wrong: `memory.suspects(10)`.

        Errors say what the model, taught by the others, said at each visit: another class was more likely, on average.

        Returns:
            A row for each: id, score (between -1 and 1), label, the suggested label, the mean probability of both,
            visits, and the other tags. Labels are numbers of the model's outputs.
        """
        return suspects(self._sources.view, k)

    def retrain(
        self,
        *,
        without: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        where: Mapping[str, Any] | None = None,
        weights: Mapping[Any, float] | None = None,
        record: Where | None = None,
        progress: Callable[[int, int], None] = lambda step, steps: None,
    ) -> nn.Module:
        """Train again without some examples: `memory.retrain(without={"id": [3, 4]})`. Needs the run's recipe.

        What `without` and `where` of a memory mute has left its mark on all that came after it; here it was never
        trained on. All else is as it was: the order, the random numbers, and by how many examples a batch's loss is
        divided.

        Args:
            without: Examples to leave out, by their tags; of several mappings, those that fit any of them.
            where: Or those that are not left out.
            weights: Or weights between 0 and 1 for some examples, by id.
            record: Where to record the training as a run of its own, from its beginning.
            progress: Called with the number of steps that were taken, and of all that have to be.

        Returns:
            The model that this training makes, of as many steps as the run has.
        """
        recipe_of(self._run)  # raises, before anything is asked of the examples
        weigh = Weights.of(self._run, without, where, weights)
        if record is None:
            return retrain(self._run, weigh, progress)
        return retrain_recorded(self._run, weigh, record, progress)

    def seconds_to_retrain(self) -> float:
        """Return about how long `retrain` takes at most, by taking a few steps. Needs the run's recipe."""
        return seconds_to_retrain(self._run)

    def verify(self, progress: Callable[[str], None] = lambda layer: None) -> Certificate:
        """Read every byte and measure the distance between dual and primal form, layer by layer.

        Always of the whole run, whatever the view.

        Args:
            progress: Called with each layer's name as its turn comes.
        """
        if self._certificate is None:
            certify = lambda layer: self._sources.duals.of(layer).certify()  # noqa: E731
            self._certificate = verify(self._run, certify, certify_accounted, progress)
        return self._certificate

    def _check_layer(self, layer: str) -> None:
        if layer not in self._run.layers:
            raise UnknownName("layer", layer, self._run.layers)

    def summary(self) -> dict[str, Any]:
        """Return what there is, as data: layers, slots, steps, bytes, tags, how recording ended."""
        return summary(self._run)

    def _lines(self) -> dict[str, str]:
        lines = summary_lines(self._run)
        if self._selection != Selection(self._run.steps):
            lines["view"] = str(self._selection)
        lines |= {"note": self.note} if self.note else {}
        lines["certificate"] = self._certificate.headline if self._certificate else "not measured yet: verify()"
        return lines

    def __repr__(self) -> str:
        return "\n".join(f"{name:<12}{value}" for name, value in self._lines().items())

    def _repr_html_(self) -> str:
        cells = ((escape(name), escape(value)) for name, value in self._lines().items())
        return "<table>" + "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells) + "</table>"
