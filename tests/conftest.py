"""Invariants of every test: it leaves the process as it found it."""

import multiprocessing
import os
import random
import signal
import threading

import hypothesis
import pytest
import torch
import torch.distributed as dist

from samestep.base.machine.c_libraries import settle_math_kernels
from samestep.ranks.rendezvous.network_store import close_all
from support import process_budget
from support.lab_verb import add_lab_verb

hypothesis.settings.register_profile("samestep", derandomize=True, deadline=None)
hypothesis.settings.load_profile("samestep")
# Ranks that are threads would each start threads of their own, and wait for each other's.
torch.set_num_threads(1)
# Ranks that are threads may call one of torch's functions for the first time all at once.
settle_math_kernels()

LONG_FOLDERS = ("tests/process/", "tests/end_to_end/")
"""The folders of `make test-long`."""
KEPT = ("rank ", "verifier", "fuzzed")
"""Names of the processes that live as long as the test session start so."""


@pytest.fixture(autouse=True)
def leaves_no_trace():
    """Fail a test that leaks environment variables, threads, processes or a process group.

    Each test has its own random numbers.

    Nothing of this depends on which tests, and modules of tests, came before.
    """
    environment, threads = dict(os.environ), set(threading.enumerate())
    torch.manual_seed(0)
    random.seed(0)
    children = set(multiprocessing.active_children())
    grad_mode = torch.is_grad_enabled()
    backward, dtype = torch.autograd.backward, torch.get_default_dtype()
    yield
    close_all()
    left = [thread.name for thread in threading.enumerate() if thread not in threads and not _kept(thread)]
    new = [child.name for child in multiprocessing.active_children() if child not in children]
    running = [name for name in new if not name.startswith(KEPT)]

    assert _user_set(os.environ) == _user_set(environment), "the test changed the environment"
    assert not left, f"the test left threads behind: {left}"
    # One that was forked has all pipes of this process: ranks of the pool would not see theirs closed.
    assert not running, f"the test left processes behind: {running}"
    assert not dist.is_initialized(), "the test left a process group behind"
    assert torch.is_grad_enabled() == grad_mode, "the test left grad mode switched"
    assert torch.get_default_dtype() == dtype, "the test left another default dtype"
    assert torch.autograd.backward is backward, "the test left backward patched"


def _user_set(environment):
    """Return the variables but for pytest's own and the one torch sets with its first optimizer."""
    own = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
    return {name: value for name, value in environment.items() if name not in own}


def _kept(thread: threading.Thread) -> bool:
    """Whether a thread belongs to something that lives as long as the test session."""
    return thread.daemon and thread.name.startswith(("QueueFeederThread", "pydevd"))


def pytest_configure(config):
    process_budget.watch()
    add_lab_verb()
    # A background job ignores the signal, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("long") and not item.nodeid.startswith(LONG_FOLDERS):
            raise pytest.UsageError(
                f"make test-long runs {' and '.join(LONG_FOLDERS)} only, not {item.nodeid}"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    process_budget.begin(process_budget.tier_of(item.nodeid.removeprefix("tests/").partition("::")[0]))


def pytest_sessionfinish(session, exitstatus):
    """End what a broken test may have left, and fail a short run that has started too many processes."""
    for child in multiprocessing.active_children():
        print(f"a test left the process {child.name} ({child.pid}) behind")
        child.kill()
    if _is_short(session.config) and process_budget.exceeded():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(f"processes started: {dict(process_budget.started)}")
    if _is_short(config):
        for line in process_budget.exceeded():
            terminalreporter.write_line(line, red=True)


def _is_short(config):
    """Return whether this is a run of `make test`, which has budgets."""
    return config.getoption("markexpr") == "not long"
