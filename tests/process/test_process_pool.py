"""The pool of rank processes returns results in rank order, and names the rank that failed."""

import os
import signal
import threading
import time
from unittest.mock import patch

import pytest
import torch

from support import process_pool
from support.process_pool import ProcessPool, RankFailed


def sum_of_ranks(world, factor):
    total = torch.tensor([float(world.place.rank * factor)])
    world.all_reduce(total)
    return world.place.rank, total.item(), os.getpid()


def fail_on(world, rank):
    if world.place.rank == rank:
        raise KeyError("the culprit")
    world.barrier()


def raise_local_class(world):
    class Unknown(Exception):
        pass

    raise Unknown("cannot travel")


def die_on(world, rank):
    if world.place.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()


def never_answer(world, rank):
    if world.place.rank == rank:
        signal.pause()


def threads(world):
    return torch.get_num_threads()


def test_results_are_in_rank_order_from_reused_processes(processes):
    first, second = processes.run(sum_of_ranks, 2, 10), processes.run(sum_of_ranks, 2, 100)
    assert [result[:2] for result in first] == [(0, 10.0), (1, 10.0)]
    assert [result[:2] for result in second] == [(0, 100.0), (1, 100.0)]
    assert [result[2] for result in first] == [result[2] for result in second]


def test_each_rank_computes_on_one_thread(processes):
    assert processes.run(threads, 2) == [1, 1]


@pytest.fixture
def own_pool():
    """A pool for tests that break it."""
    pool = ProcessPool(timeout_s=20)
    yield pool
    pool.close()


def test_an_error_keeps_its_type_and_contains_rank_and_traceback(own_pool):
    with pytest.raises(KeyError, match="the culprit") as caught:
        own_pool.run(fail_on, 2, 1)
    assert "on rank 1 of 2" in str(caught.value.__cause__)
    assert "in fail_on" in str(caught.value.__cause__)
    assert [result[0] for result in own_pool.run(sum_of_ranks, 2, 1)] == [0, 1]  # a new group


def test_an_error_that_cannot_be_pickled_is_sent_as_its_traceback(own_pool):
    with pytest.raises(RankFailed, match="cannot travel"):
        own_pool.run(raise_local_class, 1)


def test_a_dead_rank_is_reported(own_pool):
    with pytest.raises((RankFailed, RuntimeError)) as caught:
        own_pool.run(die_on, 2, 1)
    assert "rank" in f"{caught.value} {caught.value.__cause__}"


def test_a_rank_that_does_not_answer_is_reported_after_the_timeout():
    pool = ProcessPool(timeout_s=1)
    with pytest.raises(RankFailed, match=r"ranks \[0\] of 1 gave no answer in 1 s"):
        pool.run(never_answer, 1, 0)
    pool.close()


def answer_later(world, seconds, value):
    time.sleep(seconds)
    return value


def test_the_call_after_an_interrupted_one_returns_its_own_result(own_pool):
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    own_pool.run(answer_later, 2, 0.0, "first")
    before = signal.signal(signal.SIGUSR2, interrupt)
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2))
    sender.start()
    try:
        with pytest.raises(Interrupted):
            own_pool.run(answer_later, 2, 1.0, "second")
    finally:
        sender.join()
        signal.signal(signal.SIGUSR2, before)

    assert own_pool.run(answer_later, 2, 0.0, "third") == ["third", "third"]


def test_ranks_end_even_if_a_forked_process_has_their_pipes(own_pool):
    own_pool.run(sum_of_ranks, 2, 1)
    ranks = own_pool._ranks[2]
    copies = [os.dup(pipe.fileno()) for _, pipe in ranks]
    with patch.object(process_pool, "_kill"):
        own_pool.close()

    assert [process.exitcode for process, _ in ranks] == [0, 0]
    for copy in copies:
        os.close(copy)
