"""The progress in a checkpoint must agree with the data set, the settings and itself."""

import pytest

from samestep.base.errors import CheckpointError
from samestep.training.loop.training_loop import check_progress
from support.training import settings

SETTINGS = settings(epochs=3, batch_size=32, seed=7)
SAMPLES = 100  # 4 steps an epoch


def state(**changes):
    return {
        "seed": 7,
        "epoch": 1,
        "samples": 64,
        "step": 6,
        "samples_total": 164,
        "loss_sum": 1.5,
        "loss_count": 64,
        "seconds": 2.0,
        "best": 0.5,
        "unjudged": False,
        "settings": SETTINGS.as_dict(),
    } | changes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epoch": 0, "samples": 0, "step": 0, "samples_total": 0, "loss_count": 0},
        {"epoch": 3, "samples": 0, "step": 12, "samples_total": 300},
        {"loss_sum": float("nan")},  # a training that has diverged goes on
    ],
)
def test_consistent_progress_is_accepted(changes):
    check_progress(state(**changes), SETTINGS, SAMPLES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", 10**9),
        ("epoch", 3),  # with samples of an epoch that does not come any more
        ("samples", 100),
        ("samples", 63),
        ("samples", 10**30),
        ("step", 5),
        ("step", 10**18),
        ("samples_total", 163),
        ("seed", 8),
        ("loss_count", 165),
    ],
)
def test_an_inconsistent_value_is_refused_with_its_name(name, value):
    with pytest.raises(CheckpointError, match=f"the checkpoint has {name} "):
        check_progress(state(**{name: value}), SETTINGS, SAMPLES)


def test_another_data_set_is_refused():
    with pytest.raises(CheckpointError, match="data set"):
        check_progress(state(), SETTINGS, SAMPLES + 1)
