"""Settings refuse what cannot be trained, in the user's own words."""

import pytest
import torch

from samestep.base.errors import UsageError
from samestep.training.settings import Settings


def settings(**changes):
    return Settings(**{"epochs": 1, "batch_size": 8, "lr": 0.1, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "--epochs 0 is too small"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"lr": float("inf")}, "--lr inf"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 2**63}, "--seed 9223372036854775808 is too large"),
        ({"weight_decay": float("nan")}, "--weight-decay nan"),
        ({"sync": "magic"}, "--sync 'magic' is not one of bucketed"),
        ({"batch_norm": "none"}, "--batch-norm 'none'"),
        ({"optimizer": "adam"}, "--optimizer 'adam'"),
        ({"schedule": "?"}, "--schedule"),
        ({"dtype": "int8"}, "--dtype"),
    ],
)
def test_a_setting_out_of_range_is_named_by_its_flag(changes, message):
    with pytest.raises(UsageError, match=message):
        settings(**changes)


def test_a_batch_smaller_than_the_world_is_refused_with_both_numbers():
    settings().check_workers(8)

    with pytest.raises(UsageError, match=r"--batch-size 8 .* 9 workers"):
        settings().check_workers(9)


def test_the_dtype_is_torchs():
    assert settings(dtype="float64").torch_dtype is torch.float64


def test_small_shares_are_told_before_the_user_waits_for_them():
    assert settings(batch_size=64).advice(1) is None
    assert settings(batch_size=64).advice(4) is None
    assert "64 samples per step on 8 workers is 8 for each" in settings(batch_size=64).advice(8)
