"""Words left in shared memory."""

from samestep.watch.board import SharedMemory


def test_a_word_is_read_until_the_next_one():
    board = SharedMemory(2)
    board.rank = 1
    board.post(b"a long word")
    board.post(b"a word")

    assert board.read() == {1: b"a word"}


def test_a_word_that_is_being_written_is_left_out():
    board = SharedMemory(2)
    board.post(b"whole")
    board._memory[10] ^= 1

    assert board.read() == {}


def test_a_word_that_is_too_long_leaves_the_one_before():
    board = SharedMemory(1)
    board.post(b"short")
    board.post(b"x" * 5000)

    assert board.read() == {0: b"short"}
