"""A kept process that verifies scripts, for tests: torch is loaded once, and the runs are forked from it.

The test session cannot fork them itself: it has computed with torch, and may have threads.
"""

import multiprocessing
import pickle
import shutil
import tempfile
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

from support.process_budget import count_process
from support.process_pool import fork_server

SHORT_HANG_S = 4.0
"""For scripts that hang: seconds after which their runs are ended."""


class Verifier:
    """Verifies scripts in a process of its own, or in a new one after a script that took too long.

    Args:
        timeout_s: how long a script may take.
    """

    def __init__(self, *, timeout_s=100.0):
        self._timeout_s = timeout_s
        self._start()

    def _start(self):
        context = fork_server()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="verifier")
        self._process.start()
        theirs.close()

    def verify(self, path, **options):
        """Return the report on a script, as ``samestep verify --json`` prints it; see `report_on`.

        Raises:
            samestep.base.errors.Error: there is none.
        """
        for number in (1, *options.get("workers", (2,))):
            count_process(number)
        self._pipe.send_bytes(pickle.dumps((path, options)))
        if not self._pipe.poll(self._timeout_s):
            self.close()
            self._start()
            raise AssertionError(f"{path} is not verified within {self._timeout_s:g} s")
        answer = pickle.loads(self._pipe.recv_bytes())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self):
        """End the process."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def report_on(
    path,
    *,
    arguments=(),
    mode="auto",
    workers=(2,),
    steps=8,
    against=None,
    device="auto",
    hang_s=20.0,
    as_json=True,
    save=None,
    reference=None,
    resume_at=None,
    resume_with=(),
    end_by="kill",
):
    """Return the report on a script; the arguments are the command's.

    Args:
        as_json: whether to return the report's JSON, not the report.
        hang_s: ends runs that hang after so many seconds; a busy machine delays ranks that do not hang.
    """
    from samestep.autopilot.script.options import DEFAULTS
    from samestep.cli import verify
    from samestep.launch.job import Program
    from samestep.verify.script_runs import ScriptRuns

    def runnable(path, mode):
        return verify._runnable(Program(target=str(path), args=tuple(arguments)), mode)

    scratch = Path(tempfile.mkdtemp(prefix="samestep-verifier-"))
    runs = ScriptRuns(
        scratch=scratch,
        options=replace(DEFAULTS, device=device),
        watch=partial(verify._watch, limit_s=hang_s),
        tell=lambda _: None,
    )
    script, serial = runnable(path, mode), None if against is None else runnable(against, "auto")
    try:
        if save is not None:
            report = verify._saved(save, script, workers[0], runs, steps)
        elif reference is not None:
            report = verify._compared(reference, script, workers[0], runs)
        elif resume_at is not None:
            report = verify._resumed(script, workers, runs, resume_at, resume_with, end_by)
        else:
            report = verify._verified(script, serial, workers, runs, steps)
        return report.as_json() if as_json else report
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _serve(pipe):
    from samestep.cli.verify import _prepare

    multiprocessing.set_start_method(None, force=True)  # as in a process that no fork server has made
    _prepare(4)
    while True:
        try:
            path, options = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            answer = report_on(path, **options)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send_bytes(pickle.dumps(answer))
