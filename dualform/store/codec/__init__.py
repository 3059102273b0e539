"""How slots are made small: float16 rows, values without zeros, keys stored once.

Each codec is imported by its own name: `float16` needs torch, which opening a run must not.
"""
