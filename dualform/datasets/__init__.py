"""Data sets: find or download them, check them, and load them as tensors and texts."""
