"""The samples of a step are those of all ranks, replicated or sharded."""

import pytest

from samestep.studies.verify.run_record import RunRecord
from samestep.studies.verify.trace import Facts, Step, Trace


def run(*samples, **how):
    traces = [
        Trace(Facts(rank=rank), [Step(index=0, samples=[float(one) for one in own])], 1)
        for rank, own in enumerate(samples)
    ]
    return RunRecord(traces, **how)


@pytest.mark.parametrize(
    ("samples", "how", "found"),
    [
        ([[1, 3], [2]], {"runs_once": False}, [1, 2, 3]),
        ([[3, 1, 2], [1, 2, 3]], {"runs_once": True}, [1, 2, 3]),
        ([[3, 1], [2]], {"runs_once": True, "is_sliced": True}, [1, 2, 3]),
        ([[1], [1]], {"runs_once": True, "is_sliced": True}, [1]),
    ],
    ids=["sharded", "replicated", "replicated, sliced", "replicated, too few to slice"],
)
def test_the_samples_of_a_step(samples, how, found):
    assert run(*samples, **how).samples(0).tolist() == found
