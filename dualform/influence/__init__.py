"""Influence: what an output would have been, had an example not been trained on."""
