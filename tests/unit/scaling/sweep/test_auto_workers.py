"""The choice of ``-n auto``: the smallest candidate that is as fast as the fastest."""

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.sweep.auto_workers import (
    LIMIT_S,
    Candidate,
    candidates,
    fastest,
    in_words,
    measure,
    runs,
)
from samestep.scaling.sweep.trial import Outcome

FOUND = candidates(4)
SINGLE, THREADS, BOTH, WORKERS = FOUND


def measured(tmp_path, rates, seconds=1.0):
    """Return the measurement of runs with the rate of their candidate, or with an error, and their order."""
    now, made = [0.0], []

    def execute(trial, limit_s):
        case = next(one for one, own in trials if own is trial)
        made.append(case)
        now[0] += min(seconds, limit_s)
        if seconds > limit_s:
            return Outcome(trial=trial, error="it took too long", is_late=True)
        rate = rates[case]
        error = rate if isinstance(rate, str) else ""
        return Outcome(trial=trial, error=error, samples_per_second=0.0 if error else rate)

    trials, reported = runs(FOUND, ["train.py"], tmp_path), []
    found = measure(trials, execute, reported.append, clock=lambda: now[0])
    assert len(reported) == len(made)
    assert now[0] <= LIMIT_S
    return found, made


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({SINGLE: 90.0, THREADS: 100.0, BOTH: 130.0, WORKERS: 120.0}, BOTH),
        ({SINGLE: 90.0, THREADS: 100.0, BOTH: 90.0, WORKERS: 80.0}, THREADS),
        ({SINGLE: 110.0, THREADS: 100.0, BOTH: 90.0, WORKERS: 80.0}, SINGLE),
        ({SINGLE: 90.0, THREADS: 100.0, BOTH: 104.0, WORKERS: 104.0}, THREADS),  # 5 % faster is as fast
        ({SINGLE: 90.0, THREADS: 100.0, BOTH: "killed.", WORKERS: 120.0}, WORKERS),
        ({SINGLE: "killed.", THREADS: "killed.", BOTH: "killed.", WORKERS: 1.0}, WORKERS),
    ],
)
def test_the_smallest_candidate_that_is_as_fast_is_chosen(tmp_path, rates, chosen):
    found, made = measured(tmp_path, rates)

    assert fastest(FOUND, found) == chosen
    assert set(found.errors) == {case for case, rate in rates.items() if isinstance(rate, str)}
    assert sorted(made) == FOUND
    assert all(f"{workers} x {threads}" in in_words(FOUND, found) for workers, threads in rates)


def test_a_rate_above_ten_thousand_has_no_exponent(tmp_path):
    found, _ = measured(tmp_path, dict.fromkeys(FOUND, 12345.6))
    assert "12,346" in in_words(FOUND, found)


def test_the_first_error_is_reported_if_all_runs_fail(tmp_path):
    with pytest.raises(UsageError, match=r"no such file\."):
        measured(tmp_path, dict.fromkeys(FOUND, "no such file."))


@pytest.mark.parametrize(("seconds", "number"), [(8.0, 2), (11.0, 1), (30.0, 0)])
def test_runs_end_at_the_limit_of_all(tmp_path, seconds, number):
    found, made = measured(tmp_path, dict.fromkeys(FOUND, 1.0), seconds)

    assert made[0] == WORKERS
    assert (len(found.rates), found.errors) == (number, {})
    assert fastest(FOUND, found) == (THREADS if number > 1 else WORKERS)


def test_one_core_has_one_candidate(tmp_path):
    assert candidates(1) == [Candidate(1, 1)]
    assert len(runs(candidates(1), ["train.py"], tmp_path)) == 1


def test_each_run_has_its_own_files(tmp_path):
    made = [trial for _, trial in runs(FOUND, ["train.py"], tmp_path)]

    assert len({one.scratch for one in made}) == len(made) == len(FOUND)
    assert all(f"--scratch={one.scratch}" in one.command for one in made)
