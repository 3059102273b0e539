"""Where plans are carried out: in this process, or by anything that takes functions to call."""

from dualform.engine.plan import Fold, Plan, Source, carry_out
from dualform.engine.together import in_one_pass, together

__all__ = ["Fold", "Plan", "Source", "carry_out", "in_one_pass", "together"]
