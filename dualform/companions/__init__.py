"""What goes with a run: its model, and the files beside it."""
