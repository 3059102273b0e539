"""What optimisers make of gradients: hyper-parameters and moments in, coefficients out."""

from dualform.algebra.elementwise import of_sign
from dualform.algebra.rule import WEIGHT, Line, Moments, Rule
from dualform.algebra.rules import (
    RULES,
    coefficients,
    known,
    known_as,
    register,
    registered_base,
    registered_name,
    rule_named,
    unregister,
)
from dualform.algebra.step import Adjoint, Coefficients, Step, adjoint

__all__ = [
    "RULES",
    "WEIGHT",
    "Adjoint",
    "Coefficients",
    "Line",
    "Moments",
    "Rule",
    "Step",
    "adjoint",
    "coefficients",
    "known",
    "known_as",
    "of_sign",
    "register",
    "registered_base",
    "registered_name",
    "rule_named",
    "unregister",
]
