"""Manifests and the info of shards, read back: whole and of one piece, or a RunError that names the file."""

from collections.abc import Sequence
from typing import Any

from dualform.errors import RunError
from dualform.store.document import Document, parsed
from dualform.store.format import DTYPES, KINDS, VERSION, Layer, Manifest, Optimizer, Part, ShardInfo, Storage, checksum


def manifest_from_json(text: str, where: str) -> Manifest:
    """Anything that is not a manifest raises a RunError that names `where`."""
    try:
        return _manifest(parsed(text), where)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where} is not a sound manifest: {error}") from None


def info_from_json(text: str, where: str) -> tuple[ShardInfo, dict[str, int]]:
    """The info of a shard, and the checksum of each tensor. Raises ValueError, RecursionError or RunError."""
    entry = Document(parsed(text), "the info")
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
    manifest = Manifest(
        run=entry.text("run"),
        created=entry.text("created"),
        software=entry.text("software"),
        storage=_storage(Document(entry.object("storage"), "storage")),
        optimizers=tuple(_optimizer(Document(one, "an optimizer")) for one in entry.list("optimizers")),
        layers=tuple(_layer(Document(one, "a layer")) for one in entry.list("layers")),
        about=entry.object("about"),
    )
    entry.end()
    _check_layers(manifest)
    return manifest


def _check_version(version: Any, where: str) -> None:
    """Only this version is read, and of a newer one it is said what to do."""
    if type(version) is not int or version != VERSION:  # 1.0 and true are equal to 1, and not what we write
        raise RunError(
            f"{where} has format version {version!r}, this dualform reads {VERSION}: "
            "upgrade with pip install --upgrade dualform"
        )


def _storage(entry: Document) -> Storage:
    storage = Storage(entry.text("dtype"), entry.flag("values"), entry.text_or_none("merge"))
    entry.end()
    if storage.dtype not in DTYPES or (storage.values and storage.merge is not None):
        raise ValueError(f"nothing is stored like this: {storage}")
    return storage


def _optimizer(entry: Document) -> Optimizer:
    optimizer = Optimizer(entry.text("kind"), entry.texts("columns"))
    entry.end()
    return optimizer


def _layer(entry: Document) -> Layer:
    parts = tuple(_part(Document(one, "a part")) for one in entry.list("parts"))
    layer = Layer(entry.text("name"), entry.text("kind"), entry.count("d_in", 1), entry.count("d_out", 1), parts)
    entry.end()
    return layer


def _part(entry: Document) -> Part:
    columns = None if entry.is_none("columns") else entry.list("columns")
    if columns is not None and not (len(columns) == 2 and all(type(one) is int for one in columns)):
        raise ValueError(f"the columns of a part are not two whole numbers: {columns}")
    part = Part(
        entry.text("parameter"), None if columns is None else (columns[0], columns[1]), entry.count_or_none("optimizer")
    )
    entry.end()
    return part


def _check_layers(manifest: Manifest) -> None:
    """What the rest of the code takes for granted."""
    names = [layer.name for layer in manifest.layers]
    parameters = [part.parameter for layer in manifest.layers for part in layer.parts]
    if not names or len({*names}) < len(names) or len({*parameters}) < len(parameters):
        raise ValueError("its layers and parameters do not have names of their own")
    for layer in manifest.layers:
        weights = [part for part in layer.parts if part.columns is not None]
        owners = {part.optimizer for part in layer.trained}
        whole = _side_by_side([part.columns for part in weights if part.columns]) == (0, layer.d_in)
        if layer.one_hot:
            whole = [part.columns for part in layer.parts] == [(0, layer.d_in)]
        known = layer.kind in KINDS and all(o is not None and o < len(manifest.optimizers) for o in owners)
        if not (known and whole and len(owners) == 1 and layer.parts[0] in weights and layer.parts[0].trained):
            raise ValueError(f"layer {layer.name!r} is not one that can be recorded")


def _side_by_side(columns: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """From where to where these go, one after the other; None: they leave gaps, overlap or are empty."""
    lows, highs = [low for low, _ in columns], [high for _, high in columns]
    whole = bool(columns) and lows[1:] == highs[:-1] and all(low < high for low, high in columns)
    return (lows[0], highs[-1]) if whole else None
