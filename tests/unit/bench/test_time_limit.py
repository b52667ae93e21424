"""Work that exceeds its time limit is named by another thread."""

import threading

from samestep.bench.time_limit import Limit


def test_work_that_exceeds_the_limit_is_named():
    named, reported = [], threading.Event()

    def give_up(what):
        named.append(what)
        reported.set()

    with Limit(0.01, give_up) as limit:
        with limit.of("ring at 4 B"):
            pass
        with limit.of("tree at 64 KiB"):
            assert reported.wait(30)

    assert named == ["tree at 64 KiB"]


def test_work_within_the_limit_is_not_named():
    named = []
    with Limit(60, named.append) as limit, limit.of("ring at 4 B"):
        pass

    assert named == []
