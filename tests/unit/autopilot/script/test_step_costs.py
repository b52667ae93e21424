"""The measured times of steps with split calls and with unsplit ones."""

import pytest
import torch
from torch import nn

from samestep.autopilot.script.step_costs import StepCosts


class Training:
    """A training whose steps take given seconds by a clock of its own."""

    def __init__(self, size=2):
        self.now = 0.0
        self.costs = StepCosts(size, clock=lambda: self.now)
        self.optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)

    def steps(self, number, seconds, *, split, checks_s=0.0, optimizer=None):
        for _ in range(number):
            for is_split in split:
                self.costs.note_call(is_split=is_split)
            if checks_s:
                self.costs.note_check(checks_s)
            self.now += seconds + checks_s
            self.costs.after_step(optimizer or self.optimizer)
        return self


SPLIT, UNSPLIT = (True,), (False,)


@pytest.mark.parametrize(("unsplit_s", "is_faster"), [(0.009, True), (0.0099, False), (0.02, False)])
def test_unsplit_steps_are_chosen_if_they_are_clearly_shorter(unsplit_s, is_faster):
    training = Training().steps(4, 0.01, split=SPLIT).steps(4, unsplit_s, split=UNSPLIT)
    assert training.costs.is_faster_unsplit is is_faster


def test_few_steps_do_not_decide():
    training = Training().steps(4, 0.01, split=SPLIT).steps(2, 0.001, split=UNSPLIT)
    assert not training.costs.is_faster_unsplit


def test_new_steps_change_the_decision():
    training = Training().steps(4, 0.01, split=SPLIT).steps(4, 0.001, split=UNSPLIT)
    assert training.costs.is_faster_unsplit
    training.steps(3, 0.0005, split=SPLIT)
    assert not training.costs.is_faster_unsplit


def test_a_step_with_a_check_and_the_first_one_do_not_count():
    training = Training().steps(1, 5.0, split=SPLIT).steps(4, 0.02, split=UNSPLIT)
    training.steps(3, 0.02, split=SPLIT, checks_s=9.0).steps(3, 0.01, split=SPLIT)
    line = training.costs.line()
    assert "10 ms a step" in line
    assert "20 ms" in line
    assert "27 s" in line


def test_a_step_is_the_time_between_two_steps_of_one_optimizer():
    training, other = Training(), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for _ in range(4):
        training.steps(1, 0.01, split=SPLIT)
        training.steps(1, 0.03, split=SPLIT, optimizer=other)
    assert "40 ms a step" in training.costs.line()


def test_a_step_without_calls_is_not_measured():
    training = Training().steps(4, 0.01, split=())
    assert training.costs.line() is None


def test_the_report_names_both_ways_and_advises_one_worker_if_that_is_faster():
    fast = Training(4).steps(4, 0.01, split=SPLIT).steps(4, 0.03, split=UNSPLIT).costs.line()
    slow = Training(4).steps(4, 0.01, split=SPLIT).steps(4, 0.003, split=UNSPLIT).costs.line()
    alone = Training(4).steps(4, 0.01, split=UNSPLIT).costs.line()
    assert [("-n 1" in line) for line in (fast, slow, alone)] == [False, True, False]
    assert all(line.startswith("4 workers: 10 ms a step") for line in (fast, slow, alone))
