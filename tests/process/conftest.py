"""Real rank processes, started once per session."""

import pytest

from support.process_pool import ProcessPool


@pytest.fixture(scope="session")
def processes():
    """The pool of rank processes: ``processes.run(fn, size, *args)``."""
    pool = ProcessPool()
    yield pool
    pool.close()
