"""Runs a worker's program under the watchdog, with checks in every step, a counter, or a clock of its steps.

A native script whose ranks train without a process group of the job's size is ended: they are silent copies.
Such a script takes its rank from a variable that is not set here, creates one group on each node, or none at
all. Each group then trains alone, and all write the same files.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from samestep.autopilot.files.file_calls import unredirected
from samestep.base import env, event_record
from samestep.base.console import log, write_stderr
from samestep.base.errors import Error, OutOfStep, StepsDiffer, UsageError
from samestep.base.place import Place
from samestep.base.polling import holds_within
from samestep.hooks import declarations
from samestep.hooks.registry import attached_to
from samestep.hooks.training_events import optimizer_steps
from samestep.launch.local.child import Around, Watch, has_common_group
from samestep.launch.local.failure import follows_from_another
from samestep.launch.local.hosting import Ending, exit_process
from samestep.launch.source.launcher_variables import VariableRead
from samestep.launchers.detect import detect
from samestep.observe.clock_file import ClockFile, ClockOptions, Kind, has_ended
from samestep.observe.sample_count import COUNTING, StepCounts
from samestep.observe.sanitizer import sanitizing
from samestep.observe.step_clock import ScriptClock
from samestep.ranks.hang.current_call import recorded_messages
from samestep.ranks.hang.detection import DIVERGED_ADVICE, STEPS_ADVICE, HangReport
from samestep.ranks.hang.rank_status import ProcessGroupStore, State, StatusStore, Wait, inherited_store
from samestep.ranks.hang.script_position import current_line
from samestep.ranks.hang.watchdog import IdleWatch, Response, Watchdog, interval_of
from samestep.ranks.rendezvous.network_store import keep_open

Report = Callable[[Ending], None]
"""Receives how the program has failed, in case this process ends without a report of its own."""
CHECKED_STEP = 2
"""The optimizer step after which the group is checked; a script may create it for its first step."""
_PATIENCE_S = 10.0
"""Seconds that a worker which has recorded its steps waits for the others: a guess."""
_POLL_S = 0.05  # longest pause between two looks at them
_KEPT = 1000  # characters of stderr that are kept, to find its last line: a guess, longer than most


def watchdog(*, limit_s: float, forked: bool) -> Watch:
    """Return the function that runs a worker's program under the watchdog.

    Args:
        limit_s: seconds that a rank waits for another one.
        forked: whether all workers are forked from this process.
    """
    return partial(_run_watched, limit_s=limit_s, forked=forked)


def idle_watch(*, limit_s: float) -> Watch:
    """Return the function that runs the program of a single worker, and ends it if it is idle for so long."""
    return partial(_run_unless_idle, limit_s=limit_s)


def recorded(run: Callable[[], Ending], *, around: Around, size: int, script: str) -> Ending:
    """Run a worker's program in `around`, and record its events in a file; see `base.event_record`.

    `size` is the number of workers, but for those that the script starts itself.
    """
    place = detect(env.snapshot()).place
    event_record.begin_record(place.rank, max(size, place.size), script)
    steps = 0

    def after_step(_: Any) -> None:
        nonlocal steps
        if not torch.compiler.is_compiling():
            steps += 1
            event_record.note(f"optimizer step {steps} at {current_line()}")

    with optimizer_steps(after_step):
        try:
            ending = around(run)
        except BaseException as error:
            event_record.end_record(type(error).__name__)
            raise
    failed = f"exit code {ending.exit_code}" if ending.exit_code else ""
    event_record.end_record(ending.error or failed)
    return ending


def sanitized(run: Callable[[], Ending], *, around: Around) -> Ending:
    """Run a worker's program in `around`, and compare the workers in every step."""
    with sanitizing():
        return around(run)


def counted(run: Callable[[], Ending], *, around: Around, native: bool) -> Ending:
    """Run a worker's program in `around`, and print the counted steps and samples at its end.

    `native` is whether each worker has its own shard of the samples.
    """
    place = detect(env.snapshot()).place
    counts = StepCounts()
    clock = ScriptClock(counts, COUNTING, stop=lambda: None)

    def run_counted() -> Ending:
        with clock.attached():
            clock.begin()
            ending = run()
        clock.end("error" if ending.exit_code else "end")
        return ending

    ending = around(run_counted)
    if place.is_main and not ending.exit_code:
        words = counts.summary(clock.samples, is_sharded=native and place.size > 1)
        write_stderr(f"samestep: {words}\n")
    return ending


def _run_watched(
    run: Callable[[], Ending],
    report: Report,
    *,
    limit_s: float,
    forked: bool,
) -> Ending:
    environment = env.snapshot()
    place = detect(environment).place
    if place.size == 1:
        return run()
    watchdog = Watchdog(
        place,
        _status_store(place, environment, forked=forked, limit_s=limit_s),
        Response(
            limit_s=limit_s,
            on_hang=partial(_end_with_cause, report),
            on_abort=partial(_end_after_another, report),
            diverged=DIVERGED_ADVICE,
            steps=STEPS_ADVICE,
        ),
        generation=env.integer(environment, "TORCHELASTIC_RESTART_COUNT") or 0,
    )
    watchdog.begin()
    try:
        with recorded_messages():
            ending = run()
    except BaseException:
        watchdog.end("failed")
        raise
    lost: Wait | None = None
    if follows_from_another(ending.error, ending.message):
        lost = watchdog.failed_call(ending.traceback)
    state: State = "failed" if ending.exit_code else "ended"
    watchdog.end(state, line=ending.line, lost=lost)
    if lost and (hang := watchdog.explain_lost_connection(lost, ending.line)):
        cause = _out_of_step(hang)
        return replace(cause, details=cause.traceback + ending.traceback)
    return ending


def _status_store(place: Place, environment: env.Environment, *, forked: bool, limit_s: float) -> StatusStore:
    if forked and (memory := inherited_store()) is not None:
        return memory
    serves = place.is_main and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return ProcessGroupStore(place, interval_s=interval_of(limit_s), served_here=serves, keep=keep_open)


def _run_unless_idle(run: Callable[[], Ending], report: Report, *, limit_s: float) -> Ending:
    def end(line: str) -> NoReturn:
        text = (
            f"it hangs at {line}, and has used no CPU time for {limit_s:g} s. If this is expected, raise "
            "--hang-timeout (0 disables the check)"
        )
        report(Ending(exit_code=1, error=TimeoutError.__name__, message=text))
        os._exit(1)

    with IdleWatch(limit_s, end):
        return run()


def _out_of_step(hang: HangReport) -> Ending:
    lines = "".join(f"samestep: {line}\n" for line in f"error: {hang.text}".splitlines())
    kind = StepsDiffer if hang.steps_differ else OutOfStep
    return Ending(
        exit_code=1,
        error=kind.__name__,
        message=hang.text,
        traceback=lines,
        line=hang.line,
        headline=hang.headline,
    )


def _end_with_cause(report: Report, hang: HangReport) -> NoReturn:
    event_record.write_stacks_of_run()
    report(_out_of_step(hang))
    os._exit(1)


def _end_after_another(report: Report) -> NoReturn:
    report(Ending(exit_code=1, error="PeerLost", message="another rank has detected that the run hangs"))
    os._exit(1)


def checked_group(run: Callable[[], Ending], *, around: Around, reads: Sequence[VariableRead]) -> Ending:
    """Run a worker's program in `around`, and check its process group after its first steps.

    `reads` are lines of the script that read variables of other launchers.

    Raises:
        UsageError: the ranks are not in one group; raised in the script.
    """
    steps, fault = 0, ""
    size = detect(env.snapshot()).place.size  # of this round: nodes may come and go

    def after_step(*_: Any) -> None:
        nonlocal steps, fault
        if torch.compiler.is_compiling():
            return
        steps = min(steps + 1, CHECKED_STEP + 1)
        if fault:  # the script has caught the error
            write_stderr(f"samestep: error: {fault}\n")
            exit_process(UsageError.exit_code)
        if steps == CHECKED_STEP and (why := _fault(size)):
            fault = f"{why}, so the ranks train apart. {_remedy(reads)}"
            raise UsageError(fault)

    handle = register_optimizer_step_post_hook(after_step)
    try:
        return _explained(around(run), reads)
    finally:
        handle.remove()


def _explained(ending: Ending, reads: Sequence[VariableRead]) -> Ending:
    """Return the end of a program; in one line if a variable of another launcher was missing."""
    missing = [read for read in reads if ending.error == "KeyError" and ending.message == repr(read.name)]
    if not missing:
        return ending
    text = (
        f"{missing[0]}, which samestep run does not set. Read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and "
        "MASTER_PORT instead, or start it with that launcher."
    )
    return Ending(
        exit_code=UsageError.exit_code,
        error=UsageError.__name__,
        message=text,
        traceback=f"samestep: error: {text}\n",
        line=ending.line,
    )


def _fault(size: int) -> str:
    """Return what is wrong with the process group of this rank; empty if it is right."""
    group = dist.group.WORLD
    if group is not None and group.size() != size:
        return f"the script's process group has {group.size()} of {size} ranks"
    if group is None and not has_common_group(size):
        return f"{CHECKED_STEP} steps were taken, and the {size} ranks have no process group"
    return ""


def _remedy(reads: Sequence[VariableRead]) -> str:
    if reads:
        return f"{reads[0]}: read RANK, WORLD_SIZE and LOCAL_RANK instead, or start it with that launcher."
    return (
        "Call `samestep.join` or init_process_group with the launcher's RANK and WORLD_SIZE; give --mode "
        "native if independent copies are intended."
    )


def clocked(
    run: Callable[[], Ending], *, around: Around, clocking: ClockOptions, kind: Kind, size: int
) -> Ending:
    """Run a worker's program in `around`, and record its steps; `size` is the number of workers."""
    place = detect(env.snapshot()).place
    if kind == "once":  # the helpers record no steps of their own, and some are no launcher's workers
        place = replace(place, size=size)
    recording = [clocking.file_of(rank) for rank in range(1 if kind == "once" else place.size)]
    with unredirected():  # the script's process may redirect the files that its workers write
        file = ClockFile(clocking, place, kind)
    clock = ScriptClock(
        file,
        clocking,
        stop=partial(_leave_together, file, clocking, place, [path.absolute() for path in recording]),
        loaders=place.size if kind == "native" else 1,
    )

    def run_clocked() -> Ending:
        with clock.attached(), _last_line(sys.stderr) as last_line:
            ending = run()
        failed = ending.error or (f"exit code {ending.exit_code}" if ending.exit_code else "")
        clock.end(f"error: {failed}" if failed else "end", ending.message or (last_line() if failed else ""))
        return ending if failed else replace(ending, exit_code=_checked(file))

    try:
        return around(run_clocked)
    except Error as error:
        clock.end(f"error: {type(error).__name__}", str(error))
        raise


@contextmanager
def _last_line(stream: TextIO) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the last line written to `stream`.

    It explains a bare exit code, and may appear nowhere else: only rank 0 of a serial script prints.
    """
    end = ""

    def keeping(written: Callable[[str], int]) -> Callable[[str], int]:
        def write(text: str) -> int:
            nonlocal end
            end = (end + text)[-_KEPT:]
            return written(text)

        return write

    with ExitStack() as stack:
        with suppress(AttributeError, TypeError):  # a user-defined stream may not allow it
            stack.enter_context(attached_to(stream, declarations.WRITTEN_ERROR, keeping))
        yield lambda: next((line for line in reversed(end.splitlines()) if line.strip()), "").strip()


def _leave_together(
    file: ClockFile, clocking: ClockOptions, place: Place, recording: Sequence[Path]
) -> NoReturn:
    """End this process, whatever exceptions the script catches, once all have recorded their steps."""
    holds_within(lambda: all(map(has_ended, recording)), _PATIENCE_S, most_s=_POLL_S)
    exit_code = _checked(file)
    if place.is_main and not exit_code:
        log(clocking.stopped_message())
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # that of a DataLoader raises when its workers end
    for child in multiprocessing.active_children():
        child.terminate()
    exit_process(exit_code)


def _checked(file: ClockFile) -> int:
    """Return the exit code of a program that ended well; log an error if some steps could not be written."""
    try:
        file.check()
    except Error as error:
        log(f"error: {error}")
        return error.exit_code
    return 0
