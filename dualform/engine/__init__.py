"""Where plans are carried out: in this process, or by anything that takes functions to call."""

from dualform.engine.plan import Fold, Plan, Source, carry_out

__all__ = ["Fold", "Plan", "Source", "carry_out"]
