"""Metrics of torchmetrics are checked before work starts, and exact with any number of ranks."""

import sys

import pytest
import torch
import torchmetrics

from samestep.base.errors import UsageError
from samestep.ranks.world.protocol import SoloWorld
from samestep.ranks.world.thread_world import run_ranks
from samestep.training.loop.metrics import TorchMetrics, check_metrics, metrics_of

CLASSES = 4


def samples(count=37):
    """Return scores and labels of which about half are right; some classes are rarer than others."""
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(0, CLASSES, (count,), generator=draw) // torch.randint(
        1, 3, (count,), generator=draw
    )
    scores = torch.randn(count, CLASSES, generator=draw)
    scores[torch.arange(count), labels] += 0.7
    return scores, labels


def sharded_evaluation(world, make, scores, labels, batch_size):
    """Update metrics with this rank's shard of every batch, as an evaluation does; skip empty shards."""
    metrics = make()
    for _ in range(2):  # nothing is left of the evaluation before
        metrics.reset()
        for batch in range(0, len(labels), batch_size):
            ids = torch.arange(batch, min(batch + batch_size, len(labels)))
            mine = ids.tensor_split(world.place.size)[world.place.rank]
            if len(mine):
                with torch.inference_mode():
                    metrics.update(scores[mine], labels[mine])
        figures = metrics.compute(world)
    return figures


def f1_by_hand(scores, labels, average):
    found = scores.argmax(1)
    hits = torch.tensor([((found == c) & (labels == c)).sum() for c in range(CLASSES)], dtype=torch.float64)
    wrong = torch.tensor([((found == c) != (labels == c)).sum() for c in range(CLASSES)], dtype=torch.float64)
    if average == "micro":
        hits, wrong = hits.sum(0, keepdim=True), wrong.sum(0, keepdim=True)
    return (2 * hits / (2 * hits + wrong)).mean().item()


def auroc_by_hand(scores, labels):
    """Return the mean over classes of the chance that a sample of the class outranks one of another."""
    areas = []
    for c in range(CLASSES):
        inside, outside = scores.softmax(1)[labels == c, c], scores.softmax(1)[labels != c, c]
        wins = (inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside)
        areas.append(wins.mean())
    return torch.stack(areas).mean().item()


ASKED = (
    "Accuracy",
    "F1Score:average=macro",
    "F1Score:average=none",
    "AUROC",
    "AUROC:thresholds=20",
    "CalibrationError",
    "CohenKappa",
    "FBetaScore:beta=2.0,average=weighted",
    "MulticlassRecall:top_k=2",
)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [10, 4], ids=["batches of 10", "batches of 4"])
def test_metrics_of_any_number_of_ranks_equal_the_serial_ones(size, batch_size):
    scores, labels = samples()

    def make():
        return metrics_of(ASKED, classes=CLASSES)

    serial = sharded_evaluation(SoloWorld(), make, scores, labels, len(labels))
    everywhere = run_ranks(sharded_evaluation, size, make, scores, labels, batch_size)

    assert all(figures == everywhere[0] for figures in everywhere)
    assert everywhere[0] == pytest.approx(serial, rel=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_metrics_equal_those_computed_by_hand(size):
    scores, labels = samples()

    def make():
        return metrics_of(["Accuracy", "F1Score", "F1Score:average=macro", "AUROC"], classes=CLASSES)

    figures = run_ranks(sharded_evaluation, size, make, scores, labels, 10)[0]

    assert figures == pytest.approx(
        {
            "Accuracy": (scores.argmax(1) == labels).double().mean().item(),
            "F1Score": f1_by_hand(scores, labels, "micro"),
            "F1Score:average=macro": f1_by_hand(scores, labels, "macro"),
            "AUROC": auroc_by_hand(scores, labels),
        },
        rel=1e-6,
    )


def test_ranks_without_a_sample_do_not_change_a_metric():
    scores, labels = samples(2)

    def make():
        return metrics_of(["Accuracy", "CalibrationError"], classes=CLASSES)

    serial = sharded_evaluation(SoloWorld(), make, scores, labels, 2)

    assert run_ranks(sharded_evaluation, 5, make, scores, labels, 2) == [pytest.approx(serial)] * 5


def test_scores_between_0_and_1_are_not_taken_for_probabilities():
    scores, labels = samples()
    narrow = scores.clone()
    narrow[:19] = narrow[:19].sigmoid()  # one rank's scores all look like probabilities

    def make():
        return metrics_of(["AUROC", "CalibrationError"], classes=CLASSES)

    serial = sharded_evaluation(SoloWorld(), make, narrow, labels, len(labels))

    assert run_ranks(sharded_evaluation, 2, make, narrow, labels, len(labels))[0] == pytest.approx(
        serial, rel=1e-6
    )


class Extremes(torchmetrics.Metric):
    """A user-defined metric with every kind of state."""

    def __init__(self):
        super().__init__()
        self.add_state("least", torch.tensor(float("inf")), dist_reduce_fx="min")
        self.add_state("most", torch.tensor(-float("inf")), dist_reduce_fx="max")
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("product", torch.tensor(1.0), dist_reduce_fx=lambda stacked: stacked.prod(0))
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_state("lists", [], dist_reduce_fx=None)

    def update(self, probabilities, labels):
        sure = probabilities.max(1).values
        self.least = torch.minimum(self.least, sure.min())
        self.most = torch.maximum(self.most, sure.max())
        self.mean = (self.mean * self.count + sure.sum()) / (self.count + len(sure))
        self.count += len(sure)
        self.product *= 1.5 ** len(sure)
        self.rows.append(sure)
        self.lists.append(labels)

    def compute(self):
        figures = {name: getattr(self, name) for name in ("least", "most", "mean", "count", "product")}
        return {**figures, "median": torch.cat(self.rows).median(), "labels": torch.cat(self.lists).sum()}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_user_defined_metric_with_every_kind_of_state_equals_the_serial_one(size):
    scores, labels = samples(11)

    def make():
        return TorchMetrics({"own": Extremes()})

    serial = sharded_evaluation(SoloWorld(), make, scores, labels, 4)
    figures = run_ranks(sharded_evaluation, size, make, scores, labels, 4)[0]

    assert serial["own/count"] == 11
    assert serial["own/labels"] == labels.sum()
    assert serial["own/median"] == scores.softmax(1).max(1).values.median()
    assert figures == pytest.approx(serial, rel=1e-6)


def test_a_composed_metric_equals_the_serial_one():
    scores, labels = samples()

    def make():
        precision, recall = (
            kind(num_classes=CLASSES, average="macro")
            for kind in (
                torchmetrics.classification.MulticlassPrecision,
                torchmetrics.classification.MulticlassRecall,
            )
        )
        return TorchMetrics({"F": 2 * precision * recall / (precision + recall)})

    serial = sharded_evaluation(SoloWorld(), make, scores, labels, len(labels))

    assert run_ranks(sharded_evaluation, 3, make, scores, labels, 10)[0] == pytest.approx(serial, rel=1e-6)


def test_autocast_does_not_change_a_metric():
    scores, labels = samples()
    metrics = metrics_of(["CalibrationError"], classes=CLASSES)
    metrics.update(scores, labels)
    plain = metrics.compute(SoloWorld())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        metrics.update(scores, labels)

    assert metrics.compute(SoloWorld()) == plain


def test_without_names_there_are_no_metrics():
    assert metrics_of([], classes=3) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("F2Score", r"--metric F2Score: torchmetrics has no .*metric .*Accuracy.*F1Score"),
        ("BinaryF1Score", r"no multi-class metric"),
        ("F1Score:macro", r"'macro' is no parameter"),
        ("F1Score:avrage=macro", r"avrage.* Its parameters are .*average"),
        ("F1Score:average=media", r"--metric F1Score:average=media: .*average"),
        ("F1Score:num_classes=3", r"F1Score:num_classes=3: num_classes"),
        ("FBetaScore:beta=x", r"--metric FBetaScore:beta=x: .*beta"),
    ],
)
def test_a_metric_that_cannot_be_created_is_refused_before_work_starts(asked, message):
    with pytest.raises(UsageError, match=message):
        check_metrics(["Accuracy", asked], classes=CLASSES)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("ConfusionMatrix", r"ConfusionMatrix returns a table of \(4, 4\)"),
        ("ROC", r"the metric ROC returns a tuple"),
        ("Accuracy:top_k=9", r"--metric Accuracy:top_k=9: .*"),
    ],
)
def test_a_metric_that_does_not_return_a_number_is_refused_by_a_test_call(asked, message):
    with pytest.raises(UsageError, match=message):
        metrics_of([asked], classes=CLASSES)


def test_a_torchmetrics_that_cannot_be_imported_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.classification", None)

    with pytest.raises(UsageError, match=r"--metric AUROC: torchmetrics cannot be imported here: .*"):
        check_metrics(["AUROC"], classes=CLASSES)


def test_without_torchmetrics_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)

    with pytest.raises(
        UsageError, match=r"--metric AUROC needs torchmetrics.*pip install 'samestep\[metrics\]'"
    ):
        check_metrics(["AUROC"], classes=CLASSES)
