"""Oversubscription follows from the affinity and the threads of each worker."""

import pytest

from samestep.scaling.analysis.runs import is_oversubscribed


def workers(count, *, processors, threads=1, **more):
    """Return the headers of workers of one host; a list has one value for each."""
    each = {"host": "a", "device": "cpu", "processors": processors, "threads": threads} | more
    return [
        {name: value[rank] if isinstance(value, list) else value for name, value in each.items()}
        for rank in range(count)
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(workers(4, processors=4), False, id="a core each"),
        pytest.param(workers(4, processors=2), True, id="two on a core, as hardware threads may be"),
        pytest.param(workers(4, processors=8, threads=8), True, id="threads of each take all cores"),
        pytest.param(workers(4, processors=8, threads=2), False, id="threads that have a core each"),
        pytest.param(workers(1, processors=8, threads=16), False, id="one alone"),
        pytest.param(workers(2, processors=2, threads=None), False, id="unknown threads"),
        pytest.param(workers(2, processors=None, threads=8), False, id="unknown processors"),
        pytest.param(workers(8, processors=2, device="cuda"), False, id="accelerators"),
        pytest.param(workers(2, processors=9, device="cuda", device_id=["A", "B"]), False, id="one each"),
        pytest.param(workers(3, processors=9, device="cuda", device_id=["A", "B", "A"]), True, id="shared"),
        pytest.param(workers(2, processors=9, device="cuda", device_id="A", node=[0, 1]), False, id="apart"),
        pytest.param(workers(2, processors=9, device="mps", device_id=""), False, id="without a name"),
        pytest.param(workers(2, processors=2, threads=2, cpus=["0-1", "2,3"]), False, id="bound apart"),
        pytest.param(workers(2, processors=2, threads=2, cpus=["0-1", "1,2"]), True, id="bound to overlap"),
        pytest.param(workers(2, processors=2, threads=2, host=["a", "b"]), False, id="two hosts"),
        pytest.param(workers(2, processors=2, threads=2, node=[0, 1]), False, id="two nodes, one name"),
    ],
)
def test_workers_are_oversubscribed_with_more_threads_than_shared_cores(headers, expected):
    assert is_oversubscribed(headers) == expected
