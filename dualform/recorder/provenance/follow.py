"""Know whose the rows of each recorded layer are, call by call.

    provenance = Provenance(layers, note, enabled=True)
    provenance.add_hooks(model)
    provenance.tag(tags)                                # what the user says, before a forward pass or right after it
    call, number = provenance.place(layer, ...)         # which call a layer is called in, and for which time

A *call* is the outermost call of a module that holds recorded layers (calls.py): of the model, mostly, but a trainer
may call a part of it, and anybody a layer. Hooks on all such modules keep count of the depth. The experiment of
experiment.py is made once for each signature, the shapes and types of the arguments, and only where tags have an entry
for each example. Forms that were the same for three sizes are taken for further ones; rows that move with the data are
looked at again in each call.
"""

import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError
from dualform.kinds.hook import WHY_DISABLED, ModuleHook
from dualform.recorder.layers import RecordedLayer
from dualform.recorder.provenance.calls import NO_TAGS, Call
from dualform.recorder.provenance.experiment import Finding, explore, explore_again
from dualform.recorder.provenance.known import Known, Patterns
from dualform.recorder.provenance.rows import Agreement, agreement
from dualform.recorder.provenance.signature import describe
from dualform.recorder.provenance.trial import BatchOfOne, Place, Subject, Unproven
from dualform.recorder.rest import holders
from dualform.recorder.tags import Tags

_MAX_SIGNATURES = 256  # are remembered
_DEVICES = "cpu", "cuda"  # that autocast is for
_BY_SHAPE = "tags go by the shape of a layer's rows, which was not proven to be right"


class Provenance:
    """What is known of calls; `add_hooks` follows them until `close`."""

    def __init__(self, layers: Sequence[RecordedLayer], note: Callable[[str], None], enabled: bool) -> None:
        self.tags = self._lasting = NO_TAGS  # in force; and again after a step
        self._layers, self._note, self._enabled = layers, note, enabled
        self._numbers = count()
        self._depth = 0
        self._graded = True  # where the innermost module was called
        self._current: Call | None = None
        self._waiting: WeakSet[Call] = WeakSet()  # for a step: calls that may be followed back
        self._deferred: list[Call] = []  # that a checkpoint may make again
        self.experimenting = False  # whether the model is being called for an experiment
        self._known: dict[Hashable, Known] = {}
        self._patterns = Patterns()
        self._hooked: list[tuple[nn.Module, tuple[RemovableHandle, ...]]] = []

    def add_hooks(self, model: nn.Module) -> None:
        """Begin to count; to be called when layers have their own hooks, since a call ends after these."""
        enter, leave = (ModuleHook(torch.compiler.disable(hook, **WHY_DISABLED)) for hook in (self._enter, self._leave))
        for module in _holding(model, self._layers):
            # Ahead of the user's own hooks, which may change the arguments, and will do so in the experiment
            before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
            self._hooked.append((module, (before, after)))

    def drop(self, layers: Collection[str]) -> None:
        """Leave layers alone from now on."""
        self._layers = [layer for layer in self._layers if layer.name not in layers]
        self._known.clear()  # their rows may have been in the way
        kept = {id(module) for module in _holding(self._hooked[0][0], self._layers)}
        self._remove_hooks([module for module, _ in self._hooked if id(module) not in kept])

    def close(self) -> None:
        self._remove_hooks([module for module, _ in self._hooked])

    def _remove_hooks(self, modules: Sequence[nn.Module]) -> None:
        gone = {id(module) for module in modules}
        for handle in (handle for module, handles in self._hooked if id(module) in gone for handle in handles):
            handle.remove()
        self._hooked = [(module, handles) for module, handles in self._hooked if id(module) not in gone]

    def tag(self, tags: Tags, lasting: bool = False) -> None:
        """Take what the user says of the coming forward passes, or of the last one; for more than a step if lasting."""
        self._forget_interrupted()
        self.tags, self._lasting = tags, tags if lasting else NO_TAGS
        for call in list(self._waiting):
            if call.late is None:
                call.late = tags

    def untag(self) -> None:
        """Forget what the user said; nothing is said of the coming forward passes."""
        self.tags = self._lasting = NO_TAGS

    def before_step(self) -> None:
        """Find out what is still to be known of calls, while their arguments and weights are there."""
        self._forget_interrupted()
        for call in sorted(self._waiting, key=lambda call: call.number):
            tags = call.early if call.early.kinds else call.late
            if call.followed and call.known is None and tags is not None and tags.by_row:
                with ExitStack() as stack:
                    for device, dtype in call.autocast:
                        stack.enter_context(torch.autocast(device, dtype))
                    self._find(call, tags)
                call.forbid_moving()

    def after_step(self) -> None:
        """Let go of what belongs to the step."""
        for call in list(self._waiting):
            call.arguments = None
        self._waiting.clear()
        self._deferred.clear()
        self.tags = self._lasting

    def place(self, layer: str, keys: Callable[[], Tensor], leading: tuple[int, ...]) -> tuple[Call, int] | None:
        """Return which call a layer is called in, and for which time; None if its errors cannot follow."""
        call = self._current
        if call is None or self.experimenting:
            return None
        number = call.times[layer]
        call.times[layer] += 1
        if not self._graded:
            if call.graded:
                call.deferred.append((layer, number))
            return None
        if call.recomputed:
            return self._original(layer, leading) or (call, number)
        if call.known is not None and call.known.batch is not None:
            if (layer, number) in call.own:
                self._compare(call, (layer, number), keys())
            elif call.known.layout((layer, number), leading) is None:
                call.unmatched[layer, number] = keys()
        return call, number

    # Around each call

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._current is not None and module is self._current.module:
            self._forget_interrupted()
        self._depth += 1
        self._graded = torch.is_grad_enabled()
        if self._depth > 1 or self.experimenting:
            return
        recomputed = torch._C._current_graph_task_id() != -1
        frame = sys._getframe()
        while frame.f_code.co_name != "_call_impl" and frame.f_back is not None:
            frame = frame.f_back  # past what calls this hook
        call = Call(next(self._numbers), module, self.tags, self._graded, recomputed, (args, kwargs), frame)
        self._current = call
        self._waiting.add(call)
        if not (self.tags.by_row and self._graded) or recomputed:
            call.autocast = [(d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d)]
            return
        self._find(call, self.tags)
        if call.known is not None and call.known.moving:
            self._look_again(call)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        call = self._current
        if self._depth or self.experimenting or call is None:
            return
        self._current, call.frame = None, None
        if call.unmatched:
            self._look_again(call)
        if call.deferred:
            self._deferred.append(call)
        if call.known is not None:
            call.arguments = None

    def _compare(self, call: Call, place: Place, keys: Tensor) -> None:
        if not _same(keys, call.own_keys[place]):
            call.trouble[place] = "two equal calls differ"

    def _forget_interrupted(self) -> None:
        """Begin to count anew, after an interrupt in a forward pass."""
        if self._current is not None and self._current.interrupted:
            self._depth, self._current = 0, None

    def _original(self, layer: str, leading: tuple[int, ...]) -> tuple[Call, int] | None:
        """Return the call of a layer in the forward pass that a checkpoint is making again."""
        calls = [(call, number) for call in self._deferred for name, number in call.deferred if name == layer]
        if not calls:
            return None
        call, number = calls[-1]  # the way back begins at the end
        known = {maybe.known and maybe.known.layout((layer, n), leading) for maybe, n in calls}
        if len({id(maybe.early) for maybe, _ in calls}) > 1 or len(known - {None}) > 1:
            call.trouble[layer, number] = "a checkpoint made it again for one of several calls"
        call.deferred.remove((layer, number))
        return call, number

    # What is known of it

    def _find(self, call: Call, tags: Tags) -> None:
        """Look up what is known of a call's signature; make the experiment if that is nothing."""
        transformed = torch._C._functorch.peek_interpreter_stack() is not None  # in torch.vmap nothing is recorded
        if not self._enabled or call.arguments is None or transformed:
            return
        call.expected = tags.batch
        signature = id(call.module), describe(call.arguments), call.expected
        known = self._known.get(signature)
        if known is None:
            known = self._patterns.predict(_pattern(call), call.arguments, call.expected) or self._explored(call)
            self._known[signature] = known
            if len(self._known) > _MAX_SIGNATURES:
                del self._known[next(iter(self._known))]
        known.calls += 1
        call.known = known

    def _explored(self, call: Call) -> Known:
        try:
            with self._silence():
                findings = explore(self._subject(call), call.expected)
        except Unproven as reason:
            if not isinstance(reason, BatchOfOne):
                self._patterns.fail(_pattern(call))
            self._note(f"{reason}: {_BY_SHAPE}")
            return Known()
        except RecordingError as error:
            return Known(error=error)
        self._patterns.add(_pattern(call), findings)
        for (layer, _), finding in findings.layers.items():
            self._note_gaps(layer, finding)
        return Known.of(findings)

    def _note_gaps(self, layer: str, finding: Finding) -> None:
        if finding.incomplete:
            self._note(
                f"layer {layer!r}: some rows have no tags, since nothing showed whose they are (no output that is laid "
                "out by examples depends on them)"
            )

    def _look_again(self, call: Call) -> None:
        """Find out whose the rows are that move with the data: of this call, before it is made, or right after it."""
        known, after, reason = call.known, call.unmatched, "its rows are others when it is called again"
        assert known is not None
        if known.findings is None:  # foretold by forms that do not hold
            known.findings = self._explored(call).findings
        expected = {layer for layer, _ in known.findings.layers} if known.findings else set()
        self._move(known, {layer for layer, _ in after}, expected)
        try:
            with self._silence():
                looked_up = explore_again(self._subject(call), known.findings) if known.findings else {}
        except Unproven as unproven:
            looked_up, reason = {}, str(unproven)
        self._move(
            known, {place[0] for place, (again, _) in looked_up.items() if known.contradicts(place, again)}, expected
        )
        for place, (again, keys) in looked_up.items():
            if place[0] in known.moving and (place not in after or _same(after[place], keys)):
                call.own[place] = known.as_layout(again.leading, again.owners)
                call.own_keys[place] = keys
                self._note_gaps(place[0], again)
                if known.had_owners(place) and not again.incomplete and (again.owners < 0).all():
                    call.trouble[place] = "in training mode its errors are of several examples, as BatchNorm's are"
        call.trouble |= dict.fromkeys(after.keys() - call.own.keys(), reason)

    def _move(self, known: Known, layers: set[str], expected: set[str]) -> None:
        """Note which layers' rows move, and if that comes late, that it does."""
        for layer in (layers - known.moving) & expected if known.calls > 1 else ():
            self._note(
                f"layer {layer!r}: whose its rows are depends on the data, which did not show in the first batch of a "
                "shape: tags of earlier steps may be wrong"
            )
        known.moving |= layers

    def _subject(self, call: Call) -> Subject:
        parts = set(call.module.modules())
        assert call.arguments is not None
        return Subject(call.module, [layer for layer in self._layers if layer.module in parts], call.arguments)

    @contextmanager
    def _silence(self) -> Iterator[None]:
        self.experimenting = True
        try:
            yield
        finally:
            self.experimenting = False


def _holding(model: nn.Module, layers: Sequence[RecordedLayer]) -> list[nn.Module]:
    """Return those modules of a model that are, or hold, one of these layers."""
    recorded = {id(layer.module) for layer in layers}
    everywhere = model.named_modules(remove_duplicate=False)  # a layer that several modules hold is in all of them
    names = {holder for name, module in everywhere if id(module) in recorded for holder in holders(name)}
    return [module for name, module in model.named_modules() if not name or name in names]


def _pattern(call: Call) -> Hashable:
    """Return what there is to say of a call but for its sizes."""
    return id(call.module), describe(call.arguments, sizes=False), call.expected is None


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether keys (rows, width) are the same."""
    if one.shape != other.shape:
        return False
    return agreement(one, other, np.arange(len(one))) is not Agreement.NO
