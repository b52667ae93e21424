"""Finds the faults that end a run, or that make it several trainings."""

from samestep.base.errors import OutOfStep, StepsDiffer, UsageError
from samestep.launch.local.failure import Failure, follows_from_another
from samestep.ranks.hang.script_position import is_in_training_loop
from samestep.verify.compare import Comparison
from samestep.verify.trace import Place
from samestep.verify.verdict import Finding

_HANGS = (OutOfStep.__name__, StepsDiffer.__name__)


def steps_differ(comparison: Comparison) -> Finding | None:
    """Find a rank whose loop ended while another rank began a further step."""
    run = comparison.run
    begun = [trace.begun for trace in run.traces]
    most, least = begun.index(max(begun)), begun.index(min(begun))
    hangs = run.failure is not None and run.failure.error == StepsDiffer.__name__
    is_over = hangs or (run.traces[least].facts.ended == "end" and not _has_exited_in_loop(run.failure))
    if run.runs_once or begun[most] == begun[least] or not is_over:
        return None
    report = f" ({run.failure.headline})" if hangs and run.failure is not None else ""
    return comparison.finding(
        "steps-differ",
        f"the loop of rank {least} ends after {begun[least]} steps, rank {most} begins another{report}. Give "
        "every rank as many batches (samestep.shard), or join() the model, and let all ranks decide alike "
        "when to stop.",
        begun[least],
    )


def _has_exited_in_loop(failure: Failure | None) -> bool:
    """Return whether the rank that others wait for has ended inside of its training loop, by `sys.exit`."""
    return failure is not None and failure.error == OutOfStep.__name__ and is_in_training_loop(failure.line)


def hang(comparison: Comparison) -> Finding | None:
    """Find ranks of a distributed script that wait in different collectives, or for a rank that does not."""
    run = comparison.run
    if run.runs_once or run.failure is None or run.failure.error not in _HANGS:
        return None
    if any(trace.facts.ended in _HANGS for trace in run.traces):
        return None  # raised by the script, not by the watchdog
    return comparison.finding("hang", run.failure.message, run.steps, place=_place(run.failure.line))


def crash(comparison: Comparison) -> Finding | None:
    """Find the error of the rank that failed first."""
    run = comparison.run
    failed = [trace.facts for trace in run.traces if trace.facts.ended not in ("steps", "end", "killed")]
    if not failed:
        return _death(comparison)
    own = [facts for facts in failed if not follows_from_another(facts.ended, facts.message)]
    reported = {facts.rank for facts in failed}
    if not own and run.failure is not None and run.failure.rank not in reported:
        return _death(comparison)
    reported_rank = None if run.failure is None else run.failure.rank
    first = min(
        own or failed, key=lambda facts: (len(run.traces[facts.rank].steps), facts.rank != reported_rank)
    )
    where = "" if run.failure is None or reported_rank != first.rank else run.failure.line
    if first.ended in (UsageError.__name__, *_HANGS):
        message = f"{first.message}{where and f' ({where})'}"
        return comparison.finding("refused", message, run.steps, place=_place(where))
    words = [f"rank {first.rank} failed{where and f' at {where}'}", first.ended, _short(first.message)]
    message = ": ".join(filter(None, words))
    return comparison.finding("crash", message, run.steps, ranks=(first.rank,), place=_place(where))


def _short(message: str) -> str:
    """Return an error's text in one line; of an error in a DataLoader's process, without the traceback."""
    head, traceback, trace = message.partition("Original Traceback (most recent call last):")
    if traceback:
        message = f"{head} {trace.strip().splitlines()[-1]}"
    return " ".join(message.split())[:300]


def _death(comparison: Comparison) -> Finding | None:
    """Return the failure of a run in which no rank reported an error itself."""
    failure, steps = comparison.run.failure, comparison.run.steps
    if failure is None:
        return None
    message = failure.message or f"rank {failure.rank} died: with exit code {failure.exit_code}."
    return comparison.finding("crash", message, steps, ranks=(failure.rank,), place=_place(failure.line))


def _place(line: str) -> Place | None:
    """Return file and number of a ``file:line``; None for an empty one."""
    file, _, number = line.rpartition(":")
    return (file, int(number)) if file and number.isdigit() else None


def silent_copies(comparison: Comparison) -> Finding | None:
    """Find ranks that train apart, without a process group."""
    run, size = comparison.run, comparison.size
    if run.runs_once or size == 1 or any(trace.facts.group_size > 1 for trace in run.traces):
        return None
    if all(trace.facts.ended == "killed" for trace in run.traces):  # none has written whether it had a group
        return None
    return comparison.finding(
        "silent-copies",
        f"{size} workers ran without a common process group: {size} separate trainings. Call "
        "init_process_group in the script, or run the serial script with samestep run.",
    )
