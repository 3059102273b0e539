"""Experiments, through the public interface only."""
