"""The samples of a step are those of all ranks that record them."""

import pytest

from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, Step, Trace


def run(*samples, **how):
    traces = [
        Trace(Facts(rank=rank), [Step(index=0, samples=[float(one) for one in own])], 1)
        for rank, own in enumerate(samples)
    ]
    return RunRecord(traces, **how)


@pytest.mark.parametrize(
    ("samples", "how", "found"),
    [
        ([[1, 3], [2]], {}, [1, 2, 3]),
        ([[3, 1, 2]], {"runs_once": True, "workers": 2}, [1, 2, 3]),
    ],
    ids=["sharded", "serial script"],
)
def test_the_samples_of_a_step(samples, how, found):
    assert run(*samples, **how).samples(0).tolist() == found
