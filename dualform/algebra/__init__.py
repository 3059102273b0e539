"""What optimisers make of gradients: scalars in, coefficients out."""

from dualform.algebra.rules import RULES, Rule, coefficients, known
from dualform.algebra.step import Coefficients, Step, adjoint

__all__ = ["RULES", "Coefficients", "Rule", "Step", "adjoint", "coefficients", "known"]
