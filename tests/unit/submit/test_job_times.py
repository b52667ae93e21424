"""The times of a followed job are those since its last change, to its limit, and to its last epoch."""

import pytest

from samestep.submit.follow import Epochs, JobStatus, JobTimes

WAITS, RUNS = JobStatus(words="waits", waits=True), JobStatus(words="runs")


def after(*statuses):
    """Return the times of a job whose statuses were polled at these seconds."""
    times = JobTimes()
    for now_s, status in statuses:
        times.update(status, now_s)
    return times


def test_a_job_is_timed_from_the_first_poll_that_found_it_running():
    times = after((0, WAITS), (30, WAITS), (40, RUNS), (50, RUNS))

    assert times.state_s(100.0) == 60.0
    assert times.limit_left_s(100.0) is None


def test_the_times_of_the_scheduler_are_preferred():
    times = after((0, JobStatus(words="runs", elapsed_s=500.0, limit_s=600.0)))

    assert (times.state_s(10.0), times.limit_left_s(10.0)) == (510.0, 90.0)
    assert times.limit_left_s(1000.0) == 0.0


def test_a_scheduler_that_does_not_answer_changes_no_time():
    times = after((0, WAITS), (30, JobStatus(words="does not answer", is_known=False)))

    assert times.state_s(40.0) == 40.0


@pytest.mark.parametrize(
    ("elapsed_s", "ran_s"), [(None, None), (7.0, 7.0)]
)  # without the scheduler's time nothing is known about a job that was never seen to run
def test_a_job_that_ended_between_two_polls_has_the_time_of_the_scheduler_or_none(elapsed_s, ran_s):
    times = after((0, WAITS), (30, JobStatus(words="has ended", exit_code=0, elapsed_s=elapsed_s)))

    assert times.state_s(50.0) == ran_s
    assert (times.change_in_words(50.0) == "") == (ran_s is None)


def test_the_waiting_time_of_a_requeued_job_starts_at_the_requeue():
    times = after((0, RUNS), (30, WAITS), (40, WAITS))

    assert times.state_s(45.0) == 15.0


def test_the_time_left_is_estimated_from_the_printed_epochs():
    epochs = Epochs()
    epochs.read(b"samestep: 2 workers\nepoch  1/10  loss 1\nepoch  2/10  loss 1\n", 100.0)
    assert epochs.left_s(100.0) is None  # one time of arrival
    epochs.read(b"epoch  3/10  loss 0.5\n", 110.0)
    epochs.read(b"no epoch 9/10\n", 111.0)

    assert epochs.left_s(110.0) == 70.0
    assert epochs.left_s(115.0) == 65.0
    assert epochs.left_s(500.0) == 0.0


def test_the_estimate_starts_again_with_a_restarted_training():
    epochs = Epochs()
    for now_s, epoch in ((0, 1), (10, 2), (100, 1)):
        epochs.read(b"epoch %d/4 \n" % epoch, now_s)
    assert epochs.left_s(100.0) is None
    epochs.read(b"epoch 2/4 \n", 120.0)

    assert epochs.left_s(120.0) == 40.0
