"""The choice of ``-n auto``: the fewest workers that are as fast as the fastest."""

import pytest

from samestep.base.errors import UsageError
from samestep.studies.scaling.sweep.auto_workers import ROUNDS, candidates, fastest, in_words, measure, runs
from samestep.studies.scaling.sweep.trial import Outcome

FOUND = candidates(4)


def measured(tmp_path, rates):
    """Return the measurement of runs with the rate of their number of workers, or with an error."""
    made = []

    def execute(trial):
        made.append(trial.workers)
        rate = rates[trial.workers]
        error = rate if isinstance(rate, str) else ""
        return Outcome(trial=trial, error=error, samples_per_second=0.0 if error else rate)

    return measure(runs(FOUND, ["train.py"], tmp_path), execute), made


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({1: 100.0, 2: 130.0, 4: 120.0}, (2, 2)),
        ({1: 100.0, 2: 90.0, 4: 80.0}, (1, 4)),
        ({1: 100.0, 2: 104.0, 4: 104.0}, (1, 4)),  # at most 5 % faster is as fast
        ({1: 100.0, 2: "killed.", 4: 120.0}, (4, 1)),
        ({1: "killed.", 2: "killed.", 4: 1.0}, (4, 1)),
    ],
)
def test_the_fewest_workers_that_are_as_fast_are_chosen(tmp_path, rates, chosen):
    found, made = measured(tmp_path, rates)

    assert fastest(FOUND, found) == chosen
    assert set(found.errors) == {workers for workers, rate in rates.items() if isinstance(rate, str)}
    assert all(made.count(workers) == (1 if workers in found.errors else ROUNDS) for workers in rates)
    assert all(f"{workers} x {4 // workers}" in in_words(FOUND, found) for workers in rates)


def test_the_first_error_is_reported_if_nothing_was_measured(tmp_path):
    with pytest.raises(UsageError, match=r"no such file\."):
        measured(tmp_path, dict.fromkeys((1, 2, 4), "no such file."))


def test_each_run_has_its_own_files(tmp_path):
    made = runs(FOUND, ["train.py"], tmp_path)

    assert len({one.scratch for one in made}) == len(made) == ROUNDS * len(FOUND)
    assert all(f"--scratch={one.scratch}" in one.command for one in made)
