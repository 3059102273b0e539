"""Validate a shard by its table of contents alone: every tensor, its dtype, its shape.

Checksums say that a file is what somebody wrote. That it is what dualform writes is checked here, so that
whoever reads a shard may take its shapes for granted. Numbers are checked where they are read.
"""

from collections.abc import Mapping
from typing import Any

from dualform.store.schema import (
    BATCHES,
    BUFFERS,
    LOSSES,
    RESERVED,
    STATE,
    STATE_BUFFERS,
    STATE_CARRIED,
    STATE_OPTIMIZERS,
    STATE_PARAMETERS,
    Layer,
    Manifest,
    ShardInfo,
    Storage,
    audit_tensor,
    gradient_tensor,
    ledger_tensor,
    remainder_tensor,
    slot_tensor,
    state_tensor,
    tag_tensor,
    text_ends_tensor,
    text_tensor,
)

_FLOATS = ("F64", "F32", "F16", "BF16")
_MAX_DEPTH = 100  # of tuples in a state that is handed on
_TAGS = {
    "int": ("I64", "I32", "I16", "I8"),
    "string": ("I64", "I32", "I16", "I8"),
    "float": ("F64",),
    "bool": ("BOOL",),
}


def check_contents(manifest: Manifest, info: ShardInfo, tensors: Mapping[str, Any]) -> None:
    """Raise a ValueError that says what is wrong, if anything is."""
    if info.last_step < info.first_step:
        raise ValueError("it ends before it begins")
    _check_tags(info)
    _check_dropped(manifest, info)
    if info.rank >= manifest.world:
        raise ValueError(f"it is of process {info.rank}, of {manifest.world}")
    table = _Table(tensors)
    steps = info.last_step - info.first_step
    with_tables = steps and not info.rank  # what is the same in all processes, the first one keeps
    for parameter in manifest.parameters if with_tables else ():
        if parameter.optimizer is not None:
            columns = len(manifest.optimizers[parameter.optimizer].columns)
            table.take(ledger_tensor(parameter.name), ("F64",), (steps, 1 + columns))
    for layer in manifest.layers if steps else ():
        if with_tables:
            table.take(audit_tensor(layer.name), ("F32",), (steps,))
        if slot_tensor(layer.name, "pass_step") in table:
            slots = _take_slots(table, layer, manifest.storage, info) if layer.stored else _take_passes(table, layer)
            if not info.tags and not layer.stored:
                raise ValueError(f"nothing says how many slots of {layer.name} there are")
            _take_tags(table, layer, info, slots)
            if manifest.storage.merge not in (None, *info.tags):
                raise ValueError(f"its slots do not have the tag they were merged by: {manifest.storage.merge!r}")
    if any(slot_tensor(layer.name, "pass_step") in tensors for layer in manifest.layers):
        _take_texts(table, info)
    if with_tables and manifest.recipe is not None:
        table.take(LOSSES, ("F64",), (steps,))
        table.take(BATCHES, ("I64",), (steps,))
    if info.rank:
        table.end(state=False)
        return
    _take_accounts(table, manifest, steps)
    others = (other.parameter for other in manifest.others)
    for parameter in (*manifest.parameters, *others) if table.with_state else ():
        # what is constant is in the first snapshot, and again where it has changed all the same
        if parameter.trained or info.index == 0 or state_tensor(parameter.name) in table:
            table.take(state_tensor(parameter.name), _FLOATS, parameter.shape)
    table.take_carried(with_recipe=manifest.recipe is not None)
    table.end()


def _check_tags(info: ShardInfo) -> None:
    """Raise unless tags have names and kinds that tags have."""
    for tag, kind in info.tags.items():
        if tag in RESERVED or not tag.isprintable() or "/" in tag:
            raise ValueError(f"a tag cannot be called {tag!r}")
        if not isinstance(kind, str) or kind not in _TAGS:
            raise ValueError(f"unknown kind of tag: {kind!r}")


def _check_dropped(manifest: Manifest, info: ShardInfo) -> None:
    """Raise unless layers were dropped at steps up to the last, and one is left."""
    left = {layer.name for layer in manifest.layers}
    for layer, step in info.dropped.items():
        if layer not in left:
            raise ValueError(f"a layer was dropped that is not there: {layer!r}")
        if type(step) is not int or not 0 <= step <= info.last_step:
            raise ValueError(f"layer {layer!r} was dropped at {step!r}, which is no step up to {info.last_step}")
        left.remove(layer)
    if not left:
        raise ValueError("every layer was dropped")


class _Table:
    """A table of contents, from which tensors are taken one by one."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._left: dict[str, tuple[str, tuple[int, ...]]] = {}  # name -> dtype and shape
        for name, entry in tensors.items():
            if not name.isprintable():
                raise ValueError(f"the name {name!r} cannot be shown")
            # safetensors would take a list, and leave out what it does not know.
            if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
                raise ValueError(f"{name!r} is not described as a tensor is")
            self._left[name] = entry["dtype"], tuple(entry["shape"])
        self.with_state = any(name.startswith(STATE) for name in self._left)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def rows(self, name: str) -> int:
        """Return how many rows a tensor has; 0 if there is no such tensor."""
        _, shape = self._left.get(name, (None, (0,)))
        return int(shape[0]) if shape else 0

    def take(self, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        if name not in self._left:
            raise ValueError(f"{name} is missing")
        dtype, actual = self._left.pop(name)
        if dtype not in dtypes or actual != shape:
            raise ValueError(f"{name} is {dtype} of shape {actual}, not {' or '.join(dtypes)} of shape {shape}")

    def take_all(self, prefix: str, rows: int) -> None:
        """Take every tensor of a prefix; raise unless each has so many rows."""
        for name in [name for name in self._left if name.startswith(prefix)]:
            if not rows or self.rows(name) != rows:
                raise ValueError(f"{name} does not have a row for each of {rows} steps")
            del self._left[name]

    def take_carried(self, *, with_recipe: bool) -> None:
        """Take what a recipe hands on: a tensor, or the entries of a tuple, numbered from 0 on."""
        tree: dict[str, Any] = {}
        node: Any
        for name in [name for name in self._left if name.startswith(STATE_CARRIED)]:
            node, (*way, last) = tree, name.removeprefix(STATE_CARRIED).split("/")
            for entry in way[:_MAX_DEPTH]:
                node = node.setdefault(entry, {}) if isinstance(node, dict) else None
            if not with_recipe or len(way) > _MAX_DEPTH or node is None or last in node:
                raise ValueError(f"{name} does not belong there")
            node[last] = None
            del self._left[name]
        if tree and not ({*tree} == {"value"} and _is_state(tree["value"])):
            raise ValueError(f"{STATE_CARRIED} is not a tensor, or tuples of them")

    def end(self, state: bool = True) -> None:
        """Raise if anything is left but state: other parameters, buffers, an optimiser's own. Or anything at all."""
        for name in self._left:
            if not (state and name.startswith((STATE_PARAMETERS, STATE_BUFFERS, STATE_OPTIMIZERS))):
                raise ValueError(f"{name} does not belong there")


def _is_state(node: dict[str, Any] | None) -> bool:
    """Return whether a node is a tensor, or has its entries numbered from 0 on."""
    if node is None:
        return True
    return {*node} == {*map(str, range(len(node)))} and all(map(_is_state, node.values()))


def _take_accounts(table: _Table, manifest: Manifest, steps: int) -> None:
    """Take the gradients of parameters that no layer uses, with their ledger lines, and buffers step by step."""
    for parameter in (other.parameter for other in manifest.others):
        if gradient_tensor(parameter.name) in table and steps and parameter.optimizer is not None:
            columns = len(manifest.optimizers[parameter.optimizer].columns)
            table.take(ledger_tensor(parameter.name), ("F64",), (steps, 1 + columns))
            table.take(gradient_tensor(parameter.name), _FLOATS, (steps, *parameter.shape))
    for name in (remainder_tensor(parameter.name) for parameter in manifest.parameters if parameter.trained):
        if name in table:  # which of the steps it has a row for, the ledger says
            shapes = {remainder_tensor(parameter.name): parameter.shape for parameter in manifest.parameters}
            table.take(name, ("F64", "F16"), (min(table.rows(name), steps), *shapes[name]))
    table.take_all(BUFFERS, steps)


def _take_slots(table: _Table, layer: Layer, storage: Storage, info: ShardInfo) -> int:
    """Take everything about a layer's slots but their tags; return how many slots there are."""

    def take(column: str, dtypes: tuple[str, ...], *shape: int) -> None:
        table.take(slot_tensor(layer.name, column), dtypes, shape)

    def rows_of(column: str) -> int:
        return table.rows(slot_tensor(layer.name, column))

    stored, passes, precision = rows_of("keys"), rows_of("pass_step"), storage.precision
    slots = stored
    if slot_tensor(layer.name, "key_index") in table and not layer.keys.index:
        slots = rows_of("key_index")
        take("key_index", ("I64",), slots)
    if layer.keys.geometry is not None:
        take("extents", ("I64",), passes, layer.keys.geometry.dimensions)
        # maps have other rows than slots; what their numbers have to do with each other, Shard.maps checks
        tags = [table.rows(tag_tensor(layer.name, tag)) for tag in info.tags]
        slots = (rows_of("value_mask") or rows_of("values")) if storage.values else max(tags, default=stored)
    if not slots:
        raise ValueError(f"{slot_tensor(layer.name, 'keys')} is there without a slot")
    take("pass_step", ("I64",), passes)
    take("pass_rows", ("I64",), passes)
    take("factors", ("F64",), passes, 0 if storage.merge else len(layer.trained))
    if storage.values and slot_tensor(layer.name, "pass_precision") in table:
        take("pass_precision", ("U8",), passes)
    take("keys", ("I32",) if layer.keys.index else (precision.code,), stored, layer.keys.width)
    if precision.scaled and not layer.keys.index:
        take("key_exponent", ("I16",), stored)
    if storage.merge is not None:
        take("visits", ("I64",), slots)
    if storage.values and slot_tensor(layer.name, "value_mask") in table:
        take("value_mask", ("U8",), slots, -(-layer.d_out // 8))
        take("values", (precision.code,), rows_of("values"))
    elif storage.values:
        take("values", (precision.code,), slots, layer.d_out)
    if storage.values and precision.scaled:
        take("value_exponent", ("I16",), slots)
    return slots


def _take_passes(table: _Table, layer: Layer) -> int | None:
    """Take what is known of slots that a recipe makes again; how many there are, only numbers in the tensors say."""
    passes = table.rows(slot_tensor(layer.name, "pass_step"))
    table.take(slot_tensor(layer.name, "pass_step"), ("I64",), (passes,))
    table.take(slot_tensor(layer.name, "pass_rows"), ("I64",), (passes,))
    if slot_tensor(layer.name, "pass_precision") in table:
        table.take(slot_tensor(layer.name, "pass_precision"), ("U8",), (passes,))
    if layer.keys.geometry is not None:
        table.take(slot_tensor(layer.name, "extents"), ("I64",), (passes, layer.keys.geometry.dimensions))
    return None


def _take_texts(table: _Table, info: ShardInfo) -> None:
    for tag in (tag for tag, kind in info.tags.items() if kind == "string"):
        for name, dtype in ((text_tensor(tag), "U8"), (text_ends_tensor(tag), "I64")):
            table.take(name, (dtype,), (table.rows(name),))


def _take_tags(table: _Table, layer: Layer, info: ShardInfo, slots: int | None) -> None:
    for tag, kind in info.tags.items():
        slots = table.rows(tag_tensor(layer.name, tag)) if slots is None else slots
        table.take(tag_tensor(layer.name, tag), _TAGS[kind], (slots,))
        if (untagged := tag_tensor(layer.name, tag, "untagged")) in table:
            table.take(untagged, ("BOOL",), (slots,))
