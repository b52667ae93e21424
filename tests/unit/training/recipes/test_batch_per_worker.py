"""A batch per worker determines the global batch and the rate, and is labeled as a different training."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import UsageError
from samestep.training.recipes.request import LR_SCALES
from samestep.training.recipes.resolve import batch_per_worker


@pytest.mark.parametrize(("scale", "lr"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_rate_is_scaled_with_the_number_of_workers(scale, lr):
    found = batch_per_worker(64, scale=scale, lr=0.1, workers=4)

    assert found.batch_size == 256
    assert found.lr == pytest.approx(lr, rel=1e-15)


@given(scale=st.sampled_from(LR_SCALES), batch=st.integers(1, 512), lr=st.floats(1e-5, 10))
def test_one_worker_has_the_settings_of_the_serial_training(scale, batch, lr):
    found = batch_per_worker(batch, scale=scale, lr=lr, workers=1)

    assert (found.batch_size, found.lr, found.label) == (batch, lr, None)


@given(scale=st.sampled_from(LR_SCALES), batch=st.integers(1, 512), workers=st.integers(1, 64))
def test_batch_and_rate_of_four_times_the_workers_follow_the_rule(scale, batch, workers):
    few = batch_per_worker(batch, scale=scale, lr=0.1, workers=workers)
    many = batch_per_worker(batch, scale=scale, lr=0.1, workers=4 * workers)

    assert many.batch_size == 4 * few.batch_size
    assert many.lr == pytest.approx(few.lr * {"none": 1, "linear": 4, "sqrt": 2}[scale], rel=1e-12)


def test_several_workers_are_labeled_as_a_different_training():
    assert batch_per_worker(32, scale="linear", lr=0.01, workers=4).label == (
        "Not the serial training: 32 samples on each of 4 workers make a global batch of 128, so there are "
        "fewer steps and the result depends on the number of workers. "
        "The learning rate becomes 0.04 from 0.01 (linear: Goyal et al., 2017)."
    )
    assert batch_per_worker(32, scale="none", lr=0.01, workers=4).label.endswith(
        "The learning rate stays 0.01."
    )


@pytest.mark.parametrize(
    ("batch", "scale", "message"),
    [
        (0, "none", "--batch-per-worker is 0"),
        (8, "cubic", "--lr-scale 'cubic' is not one of none, linear, sqrt"),
    ],
)
def test_an_invalid_batch_or_rule_is_refused(batch, scale, message):
    with pytest.raises(UsageError, match=message):
        batch_per_worker(batch, scale=scale, lr=0.1, workers=2)
