"""The samples of a step are those of all ranks, however they came to them."""

import pytest

from samestep.study.seen import Seen
from samestep.watch.trace import Facts, Step, Trace


def seen(*samples, **how):
    traces = [
        Trace(Facts(rank=rank), [Step(index=0, samples=[float(one) for one in own])], 1)
        for rank, own in enumerate(samples)
    ]
    return Seen(traces, **how)


@pytest.mark.parametrize(
    ("samples", "how", "found"),
    [
        ([[1, 3], [2]], {"is_replicated": False}, [1, 2, 3]),
        ([[3, 1, 2], [1, 2, 3]], {"is_replicated": True}, [1, 2, 3]),
        ([[3, 1], [2]], {"is_replicated": True, "is_sliced": True}, [1, 2, 3]),
        ([[1], [1]], {"is_replicated": True, "is_sliced": True}, [1]),
    ],
    ids=["of a distributed script", "of copies", "of copies with slices", "of copies with too few to cut"],
)
def test_the_samples_of_a_step(samples, how, found):
    assert seen(*samples, **how).samples(0).tolist() == found
