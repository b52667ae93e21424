"""What takes longer than it may is named, from another thread."""

import threading

from samestep.studies.bench.time_limit import Limit


def test_what_does_not_end_is_named():
    named, known = [], threading.Event()

    def give_up(what):
        named.append(what)
        known.set()

    with Limit(0.01, give_up) as limit:
        with limit.of("ring at 4 B"):
            pass
        with limit.of("tree at 64 KiB"):
            assert known.wait(30)

    assert named == ["tree at 64 KiB"]


def test_what_ends_is_not():
    named = []
    with Limit(60, named.append) as limit, limit.of("ring at 4 B"):
        pass

    assert named == []
