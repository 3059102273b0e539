"""Draw results as matplotlib figures.

    figure = plots.total_per_class(case, {"layer-2": totals}, tasks)
    figure.savefig("totals.pdf")

Functions take tables and return figures; none of them opens a run or asks a question.
"""

from dualform.plots.accuracy import accuracies
from dualform.plots.calibration import predicted_changes
from dualform.plots.classes import answers_per_class, attention_per_class, total_per_class
from dualform.plots.contribution import LogitParts, contribution_figure
from dualform.plots.images import TopImages, top_images
from dualform.plots.matrix import attention_matrix
from dualform.plots.places import ImagePair, PairRow, attended_places
from dualform.plots.spotlight import LayerRow, spotlight_figure
from dualform.plots.style import BOTH, PREDICTED, TRUE, require_matplotlib, save_pages
from dualform.plots.subject import Case, Subject, Tasks
from dualform.plots.time import top_in_time

__all__ = [
    "BOTH",
    "PREDICTED",
    "TRUE",
    "Case",
    "ImagePair",
    "LayerRow",
    "LogitParts",
    "PairRow",
    "Subject",
    "Tasks",
    "TopImages",
    "accuracies",
    "answers_per_class",
    "attended_places",
    "attention_matrix",
    "attention_per_class",
    "contribution_figure",
    "predicted_changes",
    "require_matplotlib",
    "save_pages",
    "spotlight_figure",
    "top_images",
    "top_in_time",
    "total_per_class",
]
