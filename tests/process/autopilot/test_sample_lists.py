"""Calls whose samples come in a list, of images, sets or graphs, are split, or unsplit with equal results."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn

from support.split_check_models import drawn, labels
from support.tiers import long_param

D = torch.float64
SIZES = [9, 9, 8, 9]
"""The numbers of samples of the batches."""


@dataclass
class Graph:
    nodes: Tensor
    edges: Tensor
    name: str = "graph"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8, dtype=D), nn.Linear(8, 3, dtype=D)
        self.norm = nn.BatchNorm1d(8, dtype=D)

    def pooled(self, part):
        return torch.tanh(self.body(part)).sum(0)

    def forward(self, parts):
        return self.head(torch.stack([self.pooled(part) for part in parts]))


class Graphs(Net):
    def pooled(self, part):
        source, target = part.edges
        h = torch.tanh(self.body(part.nodes))
        return h.index_add(0, target, h[source]).mean(0)


class Pairs(Net):
    def forward(self, parts, targets):
        scores = super().forward(parts)
        pairs = zip(parts, targets, strict=True)
        return {
            "class": F.cross_entropy(scores, torch.stack([one["label"] for one in targets])),
            "points": self.mean([F.mse_loss(self.body(x), one["points"]) for x, one in pairs]),
        }

    def mean(self, losses):
        return torch.stack(losses).mean()


class DividedByLength(Pairs):
    def mean(self, losses):
        return sum(losses) / len(losses)


class AllPoints(Net):
    """A mean over the points of all images, of which a sample has any number, some of them ignored."""

    def forward(self, parts, targets):
        scores = self.head(torch.tanh(self.body(torch.cat(parts))))
        return F.cross_entropy(scores, torch.cat([one["kinds"] for one in targets]), ignore_index=-100)


class Packed(Net):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, dtype=D)

    def forward(self, parts):
        _, (h, _) = self.rnn(rnn.pack_sequence(parts, enforce_sorted=False))
        return self.head(h[-1])


class Normalized(Net):
    def pooled(self, part):
        return self.norm(self.body(part)).sum(0)


class Noisy(Net):
    def pooled(self, part):
        return F.dropout(super().pooled(part), 0.3)


class Compares(Net):
    def forward(self, parts):
        scores = super().forward(parts)
        return scores - scores.mean(0)


class Lists(Net):
    def forward(self, parts):
        return [self.head(self.pooled(part)) for part in parts]


class PaddedMean(Net):
    """A mean over padded points, which depends on the largest sample of the batch."""

    def forward(self, parts):
        return self.body(rnn.pad_sequence(parts, batch_first=True)).mean(1)


class Breaks(Net):
    def forward(self, parts):
        pooled = []
        for part in parts:
            if (part == 60).any():
                break
            pooled.append(self.pooled(part))
        return self.head(torch.stack(pooled))


def batch(number):
    points = [2 + (number * 5 + place * 3) % 4 for place in range(SIZES[number])]
    parts = [drawn(count, 4, seed=17 * number + place) for place, count in enumerate(points)]
    return parts, labels(len(parts), seed=number)


def targets_of(parts):
    found = []
    for place, part in enumerate(parts):
        kinds = labels(len(part), seed=place)
        kinds[: place % 3] = -100
        found.append({"label": labels(1, seed=place)[0], "points": drawn(len(part), 8), "kinds": kinds})
    return found


def loss_of(model, parts, y):
    if isinstance(model, Graphs):
        edges = [torch.randint(0, len(one), (2, 7)) for one in parts]
        return F.cross_entropy(model([Graph(*pair) for pair in zip(parts, edges, strict=True)]), y)
    if isinstance(model, Pairs):
        losses = model(parts, targets_of(parts))
        return losses["class"] + 0.5 * losses["points"]
    if isinstance(model, AllPoints):
        return model(tuple(parts), targets_of(parts))
    scores = model(parts)
    return F.cross_entropy(torch.stack(scores) if isinstance(scores, list) else scores, y)


def trained(make):
    torch.manual_seed(0)
    model = make()
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.3), []
    for number in range(len(SIZES)):
        loss = loss_of(model, *batch(number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        with torch.no_grad():
            found.append(loss_of(model, *batch(number)).item())
    return found + [float(one.detach().sum()) for one in model.parameters()]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        *((make, 2) for make in (Graphs, Pairs, Packed)),
        *(long_param(make, 2) for make in (Net, DividedByLength, AllPoints)),
        long_param(Graphs, 3),
    ],
)
def test_samples_in_a_list_are_split(run, make, size):
    serial = trained(make)
    found, split, unsplit, _ = run(size, trained, make)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (2 * len(SIZES), 0)


@pytest.mark.parametrize("make", [Normalized, Noisy, Compares, Lists])
def test_lists_of_samples_that_depend_on_each_other_are_unsplit(run, make):
    serial = trained(make)
    found, split, unsplit, _ = run(2, trained, make)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (0, 2 * len(SIZES))


def scores_of_padded():
    torch.manual_seed(0)
    model = PaddedMean()
    with torch.no_grad():
        sizes = [[count] * 4 for count in (1, 2, 3, 4)] + [[1, 1, 2, 3]]
        return [model([drawn(count, 4, seed=count) for count in one]).tolist() for one in sizes]


def test_a_list_of_samples_of_unequal_sizes_is_checked_after_many_of_equal_sizes(run):
    serial = scores_of_padded()
    found, split, unsplit, _ = run(2, scores_of_padded)
    assert torch.allclose(torch.tensor(found), torch.tensor(serial))
    assert (split, unsplit) == (4, 1)


def scores_of_breaks():
    """Return scores of lists with a part that ends the loop over samples, from the third call on."""
    torch.manual_seed(0)
    model, found = Breaks(), []
    for number in range(4):
        parts, _ = batch(0)  # of sizes that the first call has checked
        if number >= 2:
            parts[1][0] = parts[-1][0] = 60  # in the slices of both workers
        found.append(model(parts).tolist())
    return found


def test_a_call_with_a_branch_in_a_loop_over_samples_that_no_check_has_taken_is_computed_whole(run):
    serial = scores_of_breaks()
    found, split, unsplit, lines = run(2, scores_of_breaks)
    assert [len(one) for one in found] == [9, 9, 1, 1]
    pairs = zip(found, serial, strict=True)
    assert all(torch.allclose(torch.tensor(one), torch.tensor(other)) for one, other in pairs)
    assert (split, unsplit) == (2, 2), lines
