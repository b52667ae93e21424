"""A status store in shared memory returns the last complete message of each rank."""

from samestep.ranks.hang.rank_status import SharedMemoryStore


def test_a_message_is_replaced_by_the_next_one():
    store = SharedMemoryStore(2)
    store.rank = 1
    store.post(b"a long message")
    store.post(b"a message")

    assert store.read() == {1: b"a message"}


def test_a_message_that_is_being_written_is_left_out():
    store = SharedMemoryStore(2)
    store.post(b"complete")
    store._memory[10] ^= 1

    assert store.read() == {}


def test_a_message_that_is_too_long_does_not_replace_the_last_one():
    store = SharedMemoryStore(1)
    store.post(b"short")
    store.post(b"x" * 5000)

    assert store.read() == {0: b"short"}
