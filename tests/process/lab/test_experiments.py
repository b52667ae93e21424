"""Experiments that need ranks which are processes of torch.distributed."""

import pytest

from samestep_lab.experiments import one_parameter, under_the_hood
from samestep_lab.experiments.experiment import Setup


@pytest.fixture
def setup(processes):
    return Setup(workers=2, ranks=processes.run)


def test_ddp_averages_gradients(setup):
    assert one_parameter.run(setup).values["parameters"]["samestep, ddp"] == 1.7


def test_each_bucket_is_sent_when_its_gradients_are_ready(setup):
    outcome = under_the_hood.run(setup, model="resnet9:16", batch=2, steps=2)

    for rank in outcome.values["ranks"]:
        buckets = rank["buckets"]
        assert buckets
        assert all(one["ready"] <= one["sent"] <= one["done"] <= rank["end"] for one in buckets)
        assert [one["sent"] for one in buckets] == sorted(one["sent"] for one in buckets)
        assert rank["forward"] < rank["computed"] <= rank["backward"] < rank["end"]
        assert 0 <= rank["hidden_ms"] <= rank["communication_ms"]
    (line,) = outcome.charts
    assert set(line.rows) >= {"rank 0", "rank 1", "0: bucket 0", "1: bucket 0"}


@pytest.mark.parametrize(
    ("spans", "until", "expected"),
    [
        ([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)], 2.5, (2.5, 4.0)),
        ([(0.0, 1.0)], 9.0, (1.0, 1.0)),
        ([(4.0, 5.0)], 1.0, (0.0, 1.0)),
    ],
)
def test_hidden_time_is_the_union_of_the_spans_before_the_end_of_computing(spans, until, expected):
    assert under_the_hood.covered(spans, until) == expected
