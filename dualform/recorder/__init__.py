"""Recording: hooks on live modules and optimisers, audited step by step."""

from dualform.recorder.recorder import Recorder, record

__all__ = ["Recorder", "record"]
