"""Queries, and the attention of slots to them: questions, plans, folds, an index."""
