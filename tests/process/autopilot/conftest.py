"""Loops of calls of models, in one process with helpers."""

import pytest

from support.script_runner import ALL_SPLIT
from support.split_check_models import on_workers


@pytest.fixture
def run(processes):
    """Runs a loop with helpers; returns its result, the numbers of split and unsplit calls, and the lines."""

    def run(size, work, *args, options=ALL_SPLIT):
        (found,) = processes.run(on_workers, 1, size, options, work, *args)
        return found

    return run


@pytest.fixture
def compared(run):
    """Runs with helpers, and compares the results with those of one worker; returns counts and the report."""

    def compared(work, *args, size=2, **how):
        results, *report = run(size, work, *args, **how)
        assert results == pytest.approx(work(*args), rel=0, abs=1e-12)
        return report

    return compared
