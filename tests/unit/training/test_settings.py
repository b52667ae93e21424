"""Invalid settings are refused with their flags."""

import pytest

from samestep.base.errors import CheckpointError, UsageError
from samestep.training.settings import Settings


def settings(**changes):
    return Settings(**{"epochs": 1, "batch_size": 8, "lr": 0.1, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "--epochs is 0"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"lr": 0.0}, "--lr is 0.0"),
        ({"lr": float("nan")}, "--lr is nan"),
        ({"lr": float("inf")}, "--lr is inf"),
        ({"seed": -1}, "--seed is -1"),
        ({"seed": 2**63}, "--seed is 9223372036854775808"),
        ({"accumulate": 3}, "--batch-size 8 does not divide into 3 equal micro-batches"),
        ({"nesterov": True, "momentum": 0.0}, "--nesterov"),
        ({"nesterov": True, "optimizer": "adamw"}, "--nesterov"),
        ({"schedule": "multistep"}, "--schedule multistep needs --milestones"),
        ({"schedule": "multistep", "milestones": (3.0, 2.0)}, "--milestones 3,2"),
        ({"schedule": "one-cycle", "warmup": 0.5}, "one-cycle .* --warmup"),
        ({"warmup": 1.0}, "--warmup is 1 of 1"),
        ({"clip_norm": 0.0}, "--clip-norm is 0.0"),
        ({"ema": 1.5}, "--ema is 1.5"),
        ({"label_smoothing": float("nan")}, "--label-smoothing is nan"),
        ({"compress": "fp16", "sync": "reference"}, "--compress fp16 does not go with --sync reference"),
        ({"compress": "powersgd"}, "--compress powersgd needs --sync ddp"),
        (
            {"compress": "powersgd", "sync": "ddp", "precision": "fp16"},
            "--compress powersgd .* never recovers from an overflow",
        ),
        ({"weight_decay": float("nan")}, "--weight-decay is nan"),
        ({"sync": "flat", "exact": 2}, "--exact 2 does not go with --sync flat"),
        ({"sync": "magic"}, "--sync 'magic' is not one of auto, bucketed"),
        ({"batch_norm": "none"}, "--batch-norm 'none'"),
        ({"optimizer": "adam"}, "--optimizer 'adam'"),
        ({"schedule": "?"}, "--schedule"),
        ({"precision": "int8"}, "--precision"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_flag(changes, message):
    with pytest.raises(UsageError, match=message):
        settings(**changes)


def test_a_batch_smaller_than_the_world_size_is_refused_with_both_numbers():
    settings().check_workers(8)

    with pytest.raises(UsageError, match=r"--batch-size 8 .* 9"):
        settings().check_workers(9)


def test_a_micro_batch_smaller_than_the_world_size_is_refused():
    settings(accumulate=4).check_workers(2)

    with pytest.raises(UsageError, match=r"in 4 micro-batches of 2,.*\(3\).* 12"):
        settings(accumulate=4).check_workers(3)


def test_small_shards_are_reported_as_advice():
    assert settings(batch_size=64).advice(1) is None
    assert settings(batch_size=64).advice(4) is None
    assert "64 samples per step on 8 workers are 8 per worker" in settings(batch_size=64).advice(8)


@pytest.mark.parametrize(("workers", "busy"), [(1, "100%"), (2, "100%"), (3, "89%"), (5, "80%"), (8, "100%")])
def test_the_utilization_of_workers_with_exact_shards_is_reported(workers, busy):
    text = Settings(epochs=1, batch_size=64, lr=0.1, exact=8).about_exact(workers)

    assert "8 logical shards of 8 samples" in text
    assert f"{workers} workers are {busy} busy" in text


def test_a_resume_with_another_batch_norm_is_refused():
    with pytest.raises(CheckpointError, match="began with --batch-norm local"):
        settings().check_resumable({**settings().as_dict(), "batch_norm": "local"})


def test_without_exact_shards_no_utilization_is_reported():
    assert Settings(epochs=1, batch_size=64, lr=0.1).about_exact(2) is None
