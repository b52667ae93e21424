"""Metrics of torchmetrics equal the serial ones; torchmetrics itself does not communicate."""

import pytest
import torch
import torchmetrics

from samestep.ranks.world.protocol import SoloWorld
from samestep.training.data.loader import ImageLoader, LoaderOptions
from samestep.training.data.sets.registry import load
from samestep.training.loop.evaluate import evaluate
from samestep.training.loop.metrics import TorchMetrics, metrics_of
from samestep.training.networks import ConvNet

ASKED = ["Accuracy", "F1Score:average=macro", "AUROC"]


def score(world, batch_size):
    """Evaluate an untrained network; return its figures, with those of a user-defined metric."""
    test_set = load("digits", "test").subset(101)
    torch.manual_seed(0)
    model = ConvNet(size=8).double()
    options = LoaderOptions(batch_size=batch_size, shuffle=False, dtype=torch.float64)
    loader = ImageLoader(test_set, options, place=world.place)
    by_name = metrics_of(ASKED, classes=10)
    own = TorchMetrics({"kappa": torchmetrics.CohenKappa(task="multiclass", num_classes=10)})
    scores = [
        evaluate(model, loader.epoch(), total=len(test_set), world=world, metrics=metrics)
        for metrics in (by_name, own, by_name)
    ]
    assert scores[0] == scores[2]
    return scores[0].accuracy, scores[0].metrics | scores[1].metrics


def test_an_evaluation_gives_the_serial_figures_on_every_rank(processes):
    accuracy, serial = score(SoloWorld(), 1000)

    ranks = processes.run(score, 3, 50)  # the last batch has one sample: some ranks have none of it

    assert serial["Accuracy"] == pytest.approx(accuracy)
    assert list(serial) == [*ASKED, "kappa"]
    for _, figures in ranks:
        assert figures == ranks[0][1]
        assert figures == pytest.approx(serial, rel=1e-6)
