"""Decide how much may be kept of a step beside its slots: the smallest things first."""

from collections.abc import Mapping

MIN_BUDGET_BYTES = 64 << 10
_SHARE_OF_SLOTS = 100  # at most one byte in so many


def within_budget(sizes: Mapping[str, int], slot_bytes: int = 0) -> set[str]:
    """Return the smallest of some things, as many as may be kept beside so many bytes of slots."""
    chosen, left = set(), max(MIN_BUDGET_BYTES, slot_bytes // _SHARE_OF_SLOTS)
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        left -= sizes[name]
        if left < 0:
            break
        chosen.add(name)
    return chosen
