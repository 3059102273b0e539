"""Find training examples whose label is probably wrong: the model, taught by the others, kept saying something else.

    suspects(view, "2", 10)

The error that was recorded at the output of each visit is p - y: what the model said of the example just then, before
it learnt from it once more. A label is suspect where, on average over the visits, another class was more likely. The
first quarter of the training is left out, in which the model knows little of anything.
"""

import torch
from torch import Tensor

from dualform.errors import NotRecorded, QueryError
from dualform.influence.ask import check_view
from dualform.influence.fast import softmax_errors, why_no_curvature
from dualform.influence.visits import Visits
from dualform.slots import View
from dualform.table import Table

_BEGINNING = 0.25  # of the steps


def suspects(view: View, k: int) -> Table:
    """Return the k most suspect examples: id, score, label, what the others suggest, and their probabilities."""
    _check(view, k)
    layer, visits = softmax_layer(view)
    classes, (number, first) = view.run.layers[layer].d_out, visits.examples
    sums = torch.zeros(len(first), classes, dtype=torch.float64)  # of probabilities
    own = torch.zeros(len(first), classes, dtype=torch.float64)  # visits with each label
    margins, counts = torch.zeros(len(first), dtype=torch.float64), torch.zeros(len(first), dtype=torch.float64)
    slots, since = view.slots(layer), int(_BEGINNING * view.selection.until)
    for _, chapter in view.run.chapters:
        for step, passes in slots.passes_of_all(chapter).items():
            if not since <= step < view.selection.until:
                continue
            errors = torch.cat([slots.block(rows).values.double() for rows in passes])
            example = torch.from_numpy(number[visits.of(range(step, step + 1))])
            said, label = (rows[example >= 0] for rows in probabilities(errors))
            example = example[example >= 0]
            others = said.scatter(1, label[:, None], -1.0)
            margins.index_add_(0, example, others.amax(dim=1) - said.gather(1, label[:, None])[:, 0])
            counts.index_add_(0, example, torch.ones(len(example), dtype=torch.float64))
            sums.index_add_(0, example, said)
            own.index_put_((example, label), torch.ones(len(label), dtype=torch.float64), accumulate=True)
            _check_single(example, label)
    seen = torch.nonzero(counts).flatten()
    score = margins[seen] / counts[seen]
    best = seen[score.argsort(descending=True, stable=True)[:k]]  # of equal ones the same, however many are asked for
    label, mean, visit = own[best].argmax(dim=1), sums[best] / counts[best, None], first[best.numpy()]
    suggested = mean.scatter(1, label[:, None], -1.0).argmax(dim=1)
    columns = {
        "id": visits.columns["id"][visit],
        "score": (margins[best] / counts[best]).numpy(),
        "label": label.numpy(),
        "suggested": suggested.numpy(),
        "probability": mean.gather(1, label[:, None])[:, 0].numpy(),
        "suggested_probability": mean.gather(1, suggested[:, None])[:, 0].numpy(),
        "visits": counts[best].long().numpy(),
    }
    tags = {tag: column[visit] for tag, column in visits.columns.items() if tag not in columns}
    return Table({**columns, **tags})


def _check(view: View, k: int) -> None:
    """Raise for a question that cannot be answered."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise QueryError(f"k must be at least 1, a whole number, not {k!r}")
    if not view.run.manifest.storage.values:
        raise NotRecorded("suspects are told by values, and this run holds keys only")
    check_view(view)
    if "id" not in view.run.tags:
        raise NotRecorded("examples are told apart by their tag 'id': record with recorder.tag(id=...)")


def _check_single(example: Tensor, label: Tensor) -> None:
    """Raise if an example has several labels in one step, as a passage has of which each token is told."""
    order = example.argsort()
    same = example[order][1:] == example[order][:-1]
    if bool((same & (label[order][1:] != label[order][:-1])).any()):
        raise NotRecorded("suspects are examples with one label each; these have several at once, one for each token")


def probabilities(errors: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the model said of the examples of a step, (visits, classes), and which label each has."""
    u = softmax_errors(errors)
    label = u.argmin(dim=1)
    said = u.scatter_add(1, label[:, None], torch.ones(len(u), 1, dtype=u.dtype))
    return said.clamp(0, 1), label


def softmax_layer(view: View) -> tuple[str, Visits]:
    """Return the layer whose errors are those of a softmax, the last one of them, and its visits."""
    reasons = []
    for name in reversed(view.run.layers):
        why_not = why_no_curvature(view, name)
        if why_not is None:
            return name, Visits.of_layer(view, name)
        reasons.append(why_not)
    raise NotRecorded(f"what the model said of its training examples is not known: {reasons[0]}")
