"""Everything dualform raises on purpose, as one tree.

DualformError
├── RecordingError             the training loop cannot be recorded, or not any further
│   ├── UnexplainedGradient    keys and values are not all of a parameter's gradient
│   ├── ParameterChanged       a parameter moved without its optimiser
│   ├── NotFinite              a key, a value or a gradient is NaN or infinite
│   ├── CannotResume           the run does not go on from here: another step, other weights, another model
│   └── ProcessLost            another process of a distributed training has ended, or hangs
├── StorageError               bytes could not be written
│   └── RunExists              the directory is already in use
├── RunError                   a directory is not a readable run
├── QueryError                 the question does not fit the memory
│   ├── UnknownName            no such layer, tag or value; lists those to choose from
│   └── NotRecorded            the run does not hold what the question needs
├── RecipeError                a recipe is none, or not that of the run: a step is not what it was
├── DataError                  a data set is not found, not downloadable or malformed
├── Refused                    the viewer cannot answer a request
├── CannotServe                the viewer cannot listen: no such address, or its port is not free
└── MissingExtra               an optional dependency is not installed
"""

from collections.abc import Iterable


class DualformError(Exception):
    """Base of all errors raised by dualform."""


class RecordingError(DualformError):
    """The training loop cannot be recorded, or not any further."""


class UnexplainedGradient(RecordingError):
    """The recorded keys and values are not all of a parameter's gradient."""


class ParameterChanged(RecordingError):
    """A parameter moved without its optimiser."""


class NotFinite(RecordingError):
    """A key, a value or a gradient is NaN or infinite."""


class CannotResume(RecordingError):
    """The run does not go on from here: another step, other weights, another model."""


class ProcessLost(RecordingError):
    """Another process of a distributed training has ended, or hangs."""


class StorageError(DualformError):
    """Bytes could not be written."""


class RunExists(StorageError):
    """The directory is already in use."""


class RunError(DualformError):
    """A directory is not a readable run."""


class QueryError(DualformError):
    """The question does not fit the memory."""


class NotRecorded(QueryError):
    """The run does not hold what the question needs."""


class UnknownName(QueryError):
    """No such layer, tag or value; the message lists those to choose from.

    Args:
        kind: What sort of name it is, such as "layer".
        name: The unknown one.
        known: All that are known.
    """

    def __init__(self, kind: str, name: object, known: Iterable[object]) -> None:
        names = list(known)
        super().__init__(f"no {kind} {name!r}; {f'choose from {listing(names)}' if names else 'there are none'}")


class RecipeError(DualformError):
    """A recipe is none, or not that of the run: a step is not what it was."""


class DataError(DualformError):
    """A data set is not found, not downloadable or malformed."""


class Refused(DualformError):
    """The viewer cannot answer a request.

    Args:
        reason: Why not.
        status: HTTP's status for it.
        job: Work in the background that has to be done first, if that is the reason.
    """

    def __init__(self, reason: str, status: int = 422, job: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.job = status, job


class CannotServe(DualformError):
    """The viewer cannot listen: no such address, or its port is not free."""


class MissingExtra(DualformError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed: pip install 'dualform[{extra}]'")


def listing(names: Iterable[object], most: int = 20) -> str:
    """Return names as an error message has them: `'a', 'b', 'c' and 17 more`."""
    shown = [repr(name) for name in names]
    if not shown:
        return "nothing"
    rest = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + rest
