"""Record what a Trainer of Hugging Face trains, by one callback.

    Trainer(..., callbacks=[dualform.huggingface.Record("runs/x", tags=["id"])]).train()

transformers is imported when the callback is first asked for.
"""

from typing import TYPE_CHECKING, Any

from dualform.errors import MissingExtra

if TYPE_CHECKING:
    from dualform.huggingface.callback import Record as Record

__all__ = ["Record"]


def __getattr__(name: str) -> Any:
    if name != "Record":
        raise AttributeError(f"module 'dualform.huggingface' has no attribute {name!r}")
    try:
        from dualform.huggingface.callback import Record
    except ModuleNotFoundError as missing:
        if missing.name not in ("transformers", "accelerate"):
            raise
        raise MissingExtra(missing.name, "huggingface") from None
    return Record
