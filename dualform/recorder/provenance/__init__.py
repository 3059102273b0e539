"""Whose each row of a layer is: follow.py follows calls, experiment.py finds out, layout.py spreads tags accordingly.

    follow      hooks that know which call of a module a layer is called in; when an experiment is due
    calls       a call, and which tags belong to it
    experiment  call a module again (trial, untouched), find its batch axis (reading), compare rows (rows)
    known       what experiments found, by signature, and for calls of other sizes
    layout      owners of rows, and tags over them

A row belongs to one example of the batch, or to none.
"""
