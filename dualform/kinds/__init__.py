"""Kinds of layers, each one bilinear map; and the registry, through which everybody else finds them."""

from dualform.kinds.base import Candidate, Kind, ModuleCall, OnErrors, OnKeys
from dualform.kinds.keys import Keys, paired_with
from dualform.kinds.probe import Probe
from dualform.kinds.ragged import Ragged
from dualform.kinds.registry import KINDS, candidates, check_kinds, kind_of, match_modules, register, unregister

__all__ = [
    "KINDS",
    "Candidate",
    "Keys",
    "Kind",
    "ModuleCall",
    "OnErrors",
    "OnKeys",
    "Probe",
    "Ragged",
    "candidates",
    "check_kinds",
    "kind_of",
    "match_modules",
    "paired_with",
    "register",
    "unregister",
]
