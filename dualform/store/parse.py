"""Read manifests and the info of shards: whole and consistent, or a RunError that names the file."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualform.errors import RunError
from dualform.store.geometry import Geometry
from dualform.store.schema import (
    MAX_RANKS,
    MAX_THREADS,
    PRECISIONS,
    VERSION,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    OtherParameter,
    Parameter,
    Repetition,
    ShardInfo,
    Storage,
    Use,
    checksum,
)
from dualform.strict_json import Document, parse


def manifest_from_json(text: str, where: str) -> Manifest:
    """Return a manifest; anything else raises a RunError that names `where`."""
    try:
        return _read_manifest(parse(text), where)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where} is a corrupt manifest: {error}") from None


def info_from_json(text: str, where: str) -> tuple[ShardInfo, dict[str, int]]:
    """Return the info of a shard, and the checksum of each tensor. Raises ValueError, RecursionError or RunError."""
    with Document(parse(text), "the info") as entry:
        _check_version(entry.count("version"), where)
        info = ShardInfo(
            run=entry.text("run"),
            index=entry.count("index"),
            previous=entry.text("previous"),
            first_step=entry.count("first_step"),
            last_step=entry.count("last_step"),
            tags=entry.object("tags"),
            ended=entry.text_or_none("ended"),
            dropped=entry.object("dropped"),
            notes=entry.texts("notes"),
            rank=entry.count("rank"),
            same=entry.object("same"),
        )
        return info, entry.object("crc32")


def _read_manifest(content: Any, where: str) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != "dualform":
        raise RunError(f"{where} is not the manifest of a dualform run")
    _check_version(content.get("version"), where)
    content = dict(content)
    if content.pop("crc32", None) != checksum(content):
        raise RunError(f"{where} was damaged or edited: its checksum does not fit")
    del content["format"], content["version"]
    with Document(content, "the manifest") as entry:
        storage = _read_storage(entry.object("storage"))
        optimizers = []
        for described in entry.list("optimizers"):
            with Document(described, "an optimizer") as optimizer:
                optimizers.append(Optimizer(optimizer.text("kind"), optimizer.texts("columns")))
        parameters = [_read_parameter(described) for described in entry.list("parameters")]
        by_name = {parameter.name: parameter for parameter in parameters}
        manifest = Manifest(
            run=entry.text("run"),
            created=entry.text("created"),
            software=entry.text("software"),
            storage=storage,
            optimizers=tuple(optimizers),
            layers=tuple(_read_layer(described, by_name) for described in entry.list("layers")),
            about=entry.object("about"),
            others=tuple(_read_other(described) for described in entry.list("others")),
            frozen_numbers=entry.count("frozen_numbers"),
            world=entry.count("world", 1),
            recipe=None if entry.is_none("recipe") else _read_repetition(entry.object("recipe")),
        )
    _check_parts(manifest, parameters)
    _check_layers(manifest)
    return manifest


def _check_parts(manifest: Manifest, parameters: Sequence[Parameter]) -> None:
    """Raise unless the parts of a manifest fit together."""
    if manifest.world > MAX_RANKS or (manifest.world > 1 and manifest.storage.merge is not None):
        raise ValueError(f"nothing is recorded like this by {manifest.world} processes")
    by_name = {parameter.name: parameter for parameter in parameters}
    if len(by_name) < len(parameters) or {*by_name.values()} != {*manifest.parameters}:
        raise ValueError("its parameters do not have names of their own, or are not used")
    if len({*by_name, *(other.parameter.name for other in manifest.others)}) < len(parameters) + len(manifest.others):
        raise ValueError("its other parameters do not have names of their own")
    if any((other.parameter.optimizer or 0) >= len(manifest.optimizers) for other in manifest.others):
        raise ValueError("one of its other parameters has an optimiser that it does not describe")
    if manifest.recipe is None and not all(layer.stored for layer in manifest.layers):
        raise ValueError("slots are to be made again, and it has no recipe")
    if manifest.recipe is not None and (manifest.recipe.optimizers != len(manifest.optimizers) or manifest.world > 1):
        raise ValueError("its recipe is not one of these optimisers, in one process")


def _read_repetition(content: Any) -> Repetition:
    with Document(content, "a recipe") as entry:
        recipe = Repetition(entry.count("seed"), entry.count("threads", 1), entry.count("optimizers", 1))
    if recipe.threads > MAX_THREADS:
        raise ValueError(f"a recipe wants {recipe.threads} threads, more than {MAX_THREADS}")
    return recipe


def _read_storage(described: dict[str, Any]) -> Storage:
    with Document(described, "storage") as stored:
        storage = Storage(stored.text("dtype"), stored.flag("values"), stored.text_or_none("merge"))
    if storage.dtype not in PRECISIONS or (storage.values and storage.merge is not None):
        raise ValueError(f"nothing is stored like this: {storage}")
    return storage


def _check_version(version: Any, where: str) -> None:
    """Raise unless it is the version that is read; say what to do about another one."""
    if type(version) is int and version == VERSION:  # 2.0 is equal to 2, and not what we write
        return
    older = type(version) is int and 0 < version < VERSION
    remedy = "recorded by an older dualform: record again" if older else "upgrade with pip install --upgrade dualform"
    raise RunError(f"{where} has format version {version!r}, this dualform reads {VERSION}: {remedy}")


def _read_parameter(content: Any) -> Parameter:
    with Document(content, "a parameter") as entry:
        return _parameter(entry)


def _read_other(content: Any) -> OtherParameter:
    with Document(content, "another parameter") as entry:
        return OtherParameter(_parameter(entry), entry.text("reason"))


def _parameter(entry: Document) -> Parameter:
    name, shape, optimizer = entry.text("name"), entry.list("shape"), entry.count_or_none("optimizer")
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"the shape of parameter {name!r} is not one: {shape}")
    return Parameter(name, tuple(shape), optimizer)


def _read_layer(content: Any, parameters: Mapping[str, Parameter]) -> Layer:
    with Document(content, "a layer") as entry:
        uses = tuple(_read_use(described, parameters) for described in entry.list("uses"))
        with Document(entry.object("keys"), "keys") as described:
            geometry = None if described.is_none("geometry") else _read_geometry(described.object("geometry"))
            keys = KeyLayout(described.count("width", 1), described.flag("index"), geometry)
        d_in, d_out = entry.count("d_in", 1), entry.count("d_out", 1)
        return Layer(entry.text("name"), entry.text("kind"), d_in, d_out, keys, uses, entry.flag("stored"))


def _read_geometry(content: Any) -> Geometry:
    with Document(content, "a geometry") as entry:
        sizes = {name: tuple(entry.list(name)) for name in ("kernel", "stride", "dilation", "before", "after")}
        geometry = Geometry(**sizes, mode=entry.text("mode"))
    geometry.check()
    return geometry


def _read_use(content: Any, parameters: Mapping[str, Parameter]) -> Use:
    with Document(content, "a use") as entry:
        columns = None if entry.is_none("columns") else entry.list("columns")
        name, groups = entry.text("parameter"), entry.count("groups", 1)
    if columns is not None and not (len(columns) == 2 and all(type(column) is int for column in columns)):
        raise ValueError(f"the columns of a use are not two whole numbers: {columns}")
    if columns is None and groups != 1:
        raise ValueError(f"{groups} groups of a use without columns")
    if name not in parameters:
        raise ValueError(f"parameter {name!r} is used, and not described")
    return Use(parameters[name], None if columns is None else (columns[0], columns[1]), groups)


def _check_layers(manifest: Manifest) -> None:
    """Raise unless layers are what the code takes for granted of any kind; the kinds check what is special to them."""
    names = [layer.name for layer in manifest.layers]
    if not names or len({*names}) < len(names):
        raise ValueError("its layers do not have names of their own")
    for layer in manifest.layers:
        owners = {use.parameter.optimizer for use in layer.trained}
        known = all(o is not None and o < len(manifest.optimizers) for o in owners)
        inside = all(0 <= use.columns[0] < use.columns[1] <= layer.d_in for use in layer.uses if use.columns)
        own = len({use.parameter for use in layer.uses}) == len(layer.uses)
        if not (known and inside and own and len(owners) == 1 and layer.uses[0].trained):
            raise ValueError(f"layer {layer.name!r} is not one that can be recorded")
