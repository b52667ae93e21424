"""Ranks send each other messages of any size over connections, even if no rank receives first."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.base.errors import OutOfStep
from samestep.ranks.collectives.direct import Connections

LARGE = 3_000_000
"""Bytes; more than the kernel keeps of a message that is not received."""


def connected(size, timeout_s=20.0):
    """Return the connections of `size` ranks to each other."""
    sockets = [{} for _ in range(size)]
    for one in range(size):
        for other in range(one):
            sockets[one][other], sockets[other][one] = socket.socketpair()
    return [Connections(rank, own, timeout_s=timeout_s) for rank, own in enumerate(sockets)]


def sent_by(one, to, count):
    return bytes([16 * one + to]) * count


def exchanged(ranks, counts, **checks):
    """Let each rank send `counts[rank]` bytes to each other one; return what each has received, by sender."""

    def run(rank):
        others = [one for one in range(len(ranks)) if one != rank]
        sends = {to: [memoryview(b"head"), memoryview(sent_by(rank, to, counts[rank]))] for to in others}
        receives = {one: memoryview(bytearray(4 + counts[one])) for one in others}
        ranks[rank].exchange(sends, receives, **checks)
        return {one: bytes(got) for one, got in receives.items()}

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, range(len(ranks))))


def closed(ranks):
    for one in ranks:
        one.close()


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0, 1, 1000, 70_000, LARGE]), min_size=2, max_size=5))
def test_every_rank_receives_the_bytes_that_each_other_rank_sent(counts):
    ranks = connected(len(counts))

    for _ in range(3):  # one exchange after another, without a pause between them
        for rank, got in enumerate(exchanged(ranks, counts)):
            assert got == {
                one: b"head" + sent_by(one, rank, count) for one, count in enumerate(counts) if one != rank
            }
    closed(ranks)


def test_the_first_bytes_are_checked_before_the_rest_arrives():
    first, second = connected(2)
    into = memoryview(bytearray(1000))

    def refuse(head):
        assert bytes(head) == b"another"
        raise OutOfStep("another call")

    second.exchange({0: [memoryview(b"another")]}, {0: memoryview(bytearray(0))})
    with pytest.raises(OutOfStep):  # of 1,000 bytes, 7 arrive
        first.exchange({1: [memoryview(b"")]}, {1: into}, checked=7, check=refuse)
    closed([first, second])


def test_a_rank_that_has_ended_is_named():
    ranks = connected(3)
    ranks[2].close()

    with pytest.raises(ConnectionError, match="rank 2"):
        ranks[0].exchange(
            {one: [memoryview(b"x")] for one in (1, 2)}, {one: memoryview(bytearray(1)) for one in (1, 2)}
        )
    closed(ranks)


def test_a_rank_that_does_not_send_is_named_after_the_timeout():
    first, second = connected(2, timeout_s=0.05)

    with pytest.raises(TimeoutError, match="rank 1"):
        first.exchange({1: [memoryview(b"x")]}, {1: memoryview(bytearray(1))})
    closed([first, second])


def test_a_waiting_rank_gets_an_error_when_another_thread_ends_the_connections():
    first, second = connected(2)
    errors = []

    def wait():
        try:
            first.exchange({1: [memoryview(b"x")]}, {1: memoryview(bytearray(1))})
        except ConnectionError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    first.end()
    waiting.join(10)

    assert len(errors) == 1
    closed([first, second])
