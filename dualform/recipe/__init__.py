"""Trainings that can be run again: what makes their batches and losses, replay, and training without some examples."""

from dualform.recipe.recipe import Recipe

__all__ = ["Recipe"]
