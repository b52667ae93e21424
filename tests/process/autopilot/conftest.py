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
