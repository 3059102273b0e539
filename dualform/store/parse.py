"""Manifests and the info of shards, read back: whole and of one piece, or a RunError that names the file."""

from collections.abc import Mapping
from typing import Any

from dualform.errors import RunError
from dualform.store.schema import (
    PRECISIONS,
    VERSION,
    KeyLayout,
    Layer,
    Manifest,
    Optimizer,
    Parameter,
    ShardInfo,
    Storage,
    Use,
    checksum,
)
from dualform.strict_json import Document, parse


def manifest_from_json(text: str, where: str) -> Manifest:
    """Anything that is not a manifest raises a RunError that names `where`."""
    try:
        return _manifest(parse(text), where)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where} is a corrupt manifest: {error}") from None


def info_from_json(text: str, where: str) -> tuple[ShardInfo, dict[str, int]]:
    """The info of a shard, and the checksum of each tensor. Raises ValueError, RecursionError or RunError."""
    entry = Document(parse(text), "the info")
    _check_version(entry.count("version"), where)
    info = ShardInfo(
        run=entry.text("run"),
        index=entry.count("index"),
        previous=entry.text("previous"),
        first_step=entry.count("first_step"),
        last_step=entry.count("last_step"),
        tags=entry.object("tags"),
        strings=entry.object("strings"),
        ended=entry.text_or_none("ended"),
    )
    checksums = entry.object("crc32")
    entry.end()
    return info, checksums


def _manifest(content: Any, where: str) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != "dualform":
        raise RunError(f"{where} is not the manifest of a dualform run")
    _check_version(content.get("version"), where)
    content = dict(content)
    if content.pop("crc32", None) != checksum(content):
        raise RunError(f"{where} was damaged or edited: its checksum does not fit")
    del content["format"], content["version"]
    entry = Document(content, "the manifest")
    parameters = [_parameter(Document(one, "a parameter")) for one in entry.list("parameters")]
    by_name = {parameter.name: parameter for parameter in parameters}
    manifest = Manifest(
        run=entry.text("run"),
        created=entry.text("created"),
        software=entry.text("software"),
        storage=_storage(Document(entry.object("storage"), "storage")),
        optimizers=tuple(_optimizer(Document(one, "an optimizer")) for one in entry.list("optimizers")),
        layers=tuple(_layer(Document(one, "a layer"), by_name) for one in entry.list("layers")),
        about=entry.object("about"),
    )
    entry.end()
    if len(by_name) < len(parameters) or {*by_name.values()} != {*manifest.parameters}:
        raise ValueError("its parameters do not have names of their own, or are not used")
    _check_layers(manifest)
    return manifest


def _check_version(version: Any, where: str) -> None:
    """Only this version is read; of another one it is said what to do."""
    if type(version) is int and version == VERSION:  # 2.0 is equal to 2, and not what we write
        return
    older = type(version) is int and 0 < version < VERSION
    remedy = "recorded by an older dualform: record again" if older else "upgrade with pip install --upgrade dualform"
    raise RunError(f"{where} has format version {version!r}, this dualform reads {VERSION}: {remedy}")


def _storage(entry: Document) -> Storage:
    storage = Storage(entry.text("dtype"), entry.flag("values"), entry.text_or_none("merge"))
    entry.end()
    if storage.dtype not in PRECISIONS or (storage.values and storage.merge is not None):
        raise ValueError(f"nothing is stored like this: {storage}")
    return storage


def _optimizer(entry: Document) -> Optimizer:
    optimizer = Optimizer(entry.text("kind"), entry.texts("columns"))
    entry.end()
    return optimizer


def _parameter(entry: Document) -> Parameter:
    name, shape, optimizer = entry.text("name"), entry.list("shape"), entry.count_or_none("optimizer")
    entry.end()
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"the shape of parameter {name!r} is not one: {shape}")
    return Parameter(name, tuple(shape), optimizer)


def _layer(entry: Document, parameters: Mapping[str, Parameter]) -> Layer:
    uses = tuple(_use(Document(one, "a use"), parameters) for one in entry.list("uses"))
    keys = _keys(Document(entry.object("keys"), "keys"))
    layer = Layer(entry.text("name"), entry.text("kind"), entry.count("d_in", 1), entry.count("d_out", 1), keys, uses)
    entry.end()
    return layer


def _keys(entry: Document) -> KeyLayout:
    keys = KeyLayout(entry.count("width", 1), entry.flag("index"))
    entry.end()
    return keys


def _use(entry: Document, parameters: Mapping[str, Parameter]) -> Use:
    columns = None if entry.is_none("columns") else entry.list("columns")
    if columns is not None and not (len(columns) == 2 and all(type(one) is int for one in columns)):
        raise ValueError(f"the columns of a use are not two whole numbers: {columns}")
    name = entry.text("parameter")
    entry.end()
    if name not in parameters:
        raise ValueError(f"parameter {name!r} is used, and not described")
    return Use(parameters[name], None if columns is None else (columns[0], columns[1]))


def _check_layers(manifest: Manifest) -> None:
    """What the rest of the code takes for granted of any layer. Whether it is one of its kind, the kinds tell."""
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
