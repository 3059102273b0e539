"""The claim: from a trained model to the training examples behind its predictions, beside the tools used for that.

    python -m benchmarks.peers --data data

The question is the same for all: the top ten training examples, with scores, of 100 MNIST test images, of one MLP
(784-800-800-10) trained on 60,000 images. See `compare` for who is asked, `asking` for what is measured and how,
and each peer's module for its settings.
"""

from benchmarks.peers.compare import measure as measure
from benchmarks.peers.table import report as report

__all__ = ["measure", "report"]
