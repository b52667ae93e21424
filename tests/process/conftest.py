"""Real rank processes, started once per session."""

import pytest

from support.process_pool import ProcessPool

CALL_S = 100.0
"""A call may take so long: other parts of the tests keep the cores busy. pytest ends a test after 120 s."""


@pytest.fixture(scope="session")
def processes():
    """The pool of rank processes: ``processes.run(fn, size, *args)``."""
    pool = ProcessPool(timeout_s=CALL_S)
    yield pool
    pool.close()
