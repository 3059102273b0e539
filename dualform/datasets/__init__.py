"""Data sets: finding them, checking them, handing them out as tensors."""
