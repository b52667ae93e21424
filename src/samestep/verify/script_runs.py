"""Runs scripts with probes, one run after the other, each with files of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError
from samestep.base.machine.accelerators import advice_on
from samestep.base.units import counted, one_line
from samestep.launch.job import Program
from samestep.launch.local.child import Watch
from samestep.verify.probed_run import Kind, TracedRun
from samestep.verify.run_length import LEAST_STEPS, FixedLength, RunLength, progress_line
from samestep.verify.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and its kind."""

    program: Program
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRuns:
    """Runs scripts, and names each run for the user."""

    scratch: Path  # an empty folder for all files of the runs
    options: Options  # how a serial script is split across workers
    # returns a function that runs each of the given number of workers, and ends a run that hangs
    watch: Callable[[int, Kind], Watch]
    tell: Callable[[str], None]  # prints a line about progress

    def run(self, script: Script, size: int, label: str, *, length: RunLength, **changed: Any) -> RunRecord:
        """Run a script on some workers.

        Args:
            script: the script.
            size: number of workers.
            label: names the run for the user; empty for the usual one.
            length: decides after which step it is stopped.
            changed: further arguments of `TracedRun`.
        """
        title = f"{script.program.target}: {counted(size, 'worker')}{label and f' ({label})'}"
        self.tell(title)
        with progress_line(title) as progress:
            return TracedRun(
                program=script.program,
                kind=script.kind,
                size=size,
                length=length,
                progress=progress,
                folder=self.scratch / f"run-{len(list(self.scratch.iterdir()))}",
                options=self.options,
                watch=self.watch(size, script.kind),
                **changed,
            ).run()

    def baseline(
        self, script: Script, size: int, label: str, *, length: RunLength
    ) -> tuple[RunRecord, RunRecord]:
        """Run a script, and again with its gradients disturbed by rounding: return reference and control.

        The reference is what other runs are compared with, and the difference of the two is what rounding
        explains; the arguments are those of `run`.

        Raises:
            UsageError: the script fails, or makes no step.
        """
        where = f"on {counted(size, 'worker')}"
        reference = self.run(script, size, label, length=length)
        require_end(reference, script, where)
        if not reference.steps:
            raise UsageError(
                f"{script.program.target} made no training step {where}: no optimizer stepped (without one, "
                "a backward is a step)."
            )
        control = self.run(script, size, "gradients disturbed", length=length_after(reference), disturb=True)
        require_end(control, script, f"{where} when its gradients change by as little as rounding")
        return reference, control


def require_end(run: RunRecord, script: Script, where: str) -> None:
    """Check that a run did not fail; `where` is a part of the message.

    Raises:
        UsageError: it failed.
    """
    if run.facts.ended not in ("steps", "end"):
        advice = advice_on(run.facts.message)
        raise UsageError(f"{script.program.target} fails {where}: {_failure(run)}.{advice and f' {advice}.'}")


def _failure(run: RunRecord) -> str:
    """Return how a run failed."""
    facts, failure = run.facts, run.failure
    if facts.ended != "killed":
        why = one_line(facts.message).removesuffix(".")
        return f"{facts.ended}: {why}" if why else f"{facts.ended}; python prints the reason"
    if failure is None:
        return "its process exited without Python's cleanup (os._exit?) and reported no error"
    return failure.message.removesuffix(".") or f"it died with exit code {failure.exit_code}"


def length_after(reference: RunRecord) -> RunLength:
    """Return the length of runs that are compared with a reference, which may have ended by itself."""
    is_whole = reference.facts.ended != "steps"
    return FixedLength(2 * reference.steps + LEAST_STEPS if is_whole else reference.steps)
