"""Verifies that a script which is ended and started again takes the steps of one that was not ended.

There are three kinds of runs: the uninterrupted one and its control, whose gradients are disturbed by
rounding; one that is ended after some steps as a user's run is; and, for each number of workers, one that the
script's own way to resume continues, with the files of the one that was ended.
"""

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.launch.job import Program
from samestep.verify.parameter_alignment import UnmatchedParametersError, align_parameters, drop_parameters
from samestep.verify.resumed_causes import Resumption, resumed_causes, with_optimizers_of
from samestep.verify.run_length import (
    LEAST_STEPS,
    LEAST_STEPS_OF_RANKS,
    LEAST_STEPS_OF_SLOW_SCRIPTS,
    EndedAfter,
    FixedLength,
    RunLength,
    UntilEvaluatedAfter,
    WithinTime,
)
from samestep.verify.run_record import RunRecord
from samestep.verify.script_findings import (
    baseline_findings,
    is_conclusive,
    not_compared,
    not_reached,
    nothing_compared,
    row_of,
)
from samestep.verify.script_runs import Script, ScriptRuns, limit_of_runs, require_end
from samestep.verify.verdict import NotCompared, Report, Row

EndedBy: TypeAlias = Literal["stop", "term", "kill"]
SIGNALS: Mapping[EndedBy, int] = {"stop": 0, "term": signal.SIGTERM, "kill": signal.SIGKILL}
"""The signal that ends a run; 0 for none, as where the step clock ends it without Python's cleanup."""
_MORE_STEPS = 50
"""Steps that a script may take after SIGTERM, to save a checkpoint where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedVerification:
    """A verification of a script's own way to resume."""

    script: Script
    runs: ScriptRuns
    # numbers of workers: the first is that of the runs before the end, and each is that of a resumed one
    workers: Sequence[int]
    steps: int  # steps after which the run is ended, of all optimizers together
    arguments: Sequence[str]  # further arguments of the script when it is resumed
    ended_by: EndedBy

    def run(self) -> Report:
        """Execute all runs and compare them.

        Raises:
            UsageError: the script fails before it is ended, or makes too few steps.
        """
        size = self.workers[0]
        ended = self._ended(size)
        usual, control = self.runs.baseline(
            self.script, size, "uninterrupted", length=self._length(ended.steps, size)
        )
        findings = baseline_findings(usual, control)
        if not is_conclusive(findings):
            return Report(rows=[], findings=findings, steps=usual.steps, reference="uninterrupted")
        if control.steps < usual.steps:  # as where the time ends the script
            usual = usual.cut(control.steps)
        if usual.steps <= ended.steps:
            made = counted(usual.steps, "step")
            raise UsageError(f"--resume-at is {self.steps}, and the script makes {made} here; give fewer.")
        rows = [self._row(number, usual, control, ended) for number in self.workers]
        missing = not_reached(usual)
        for _, more in rows:
            missing |= more
        return Report(
            rows=[row for row, _ in rows],
            findings=findings,
            steps=usual.steps,
            not_compared=missing,
            reference="uninterrupted",
        )

    def _length(self, steps: int, size: int) -> RunLength:
        """Return the length of the uninterrupted run, if the other one is ended after some steps."""
        if self.script.kind != "serial" and size > 1:  # ranks that decide for themselves could part
            return FixedLength(steps + LEAST_STEPS_OF_RANKS)
        return WithinTime(
            UntilEvaluatedAfter(steps), limit_of_runs(4), least=steps + LEAST_STEPS_OF_SLOW_SCRIPTS
        )

    @property
    def _files(self) -> str:
        return "files-of-the-ended-run"

    def _ended(self, size: int) -> RunRecord:
        """Run the script and end it.

        Raises:
            UsageError: it failed before.
        """
        ended = self.runs.run(
            self.script,
            size,
            f"ended after step {self.steps - 1}",
            length=EndedAfter(self.steps, _MORE_STEPS),
            ended_by=SIGNALS[self.ended_by],
            files=self.runs.scratch / self._files,
        )
        if ended.steps < self.steps:
            require_end(ended, self.script, "before it is ended")
            raise UsageError(
                f"{self.script.program.target} ends after {ended.steps} steps when it runs again."
            )
        return ended

    def _row(
        self, size: int, usual: RunRecord, control: RunRecord, ended: RunRecord
    ) -> tuple[Row, dict[NotCompared, str]]:
        """Return the comparison of a resumed run, and what was not compared."""
        files = self.runs.scratch / f"{self._files}-{size}"
        shutil.copytree(self.runs.scratch / self._files, files, symlinks=True)
        program = self.script.program
        again = replace(self.script, program=_with_arguments(program, self.arguments))
        more = LEAST_STEPS if usual.facts.ended == "end" else 0  # to find that it does not end
        length = FixedLength(usual.steps + more)
        resumed = self.runs.run(again, size, "resumed", length=length, files=files)
        resumed = with_optimizers_of(usual, resumed)
        missing: dict[NotCompared, str] = {}
        try:
            usual, resumed, control = align_parameters(usual, resumed, control)
        except UnmatchedParametersError:
            usual, resumed, control = map(drop_parameters, (usual, resumed, control))
            missing["parameters"] = "parameter or gradient (those of the runs cannot be matched)"
        resumption = Resumption(
            replace(usual, origin="uninterrupted"), resumed, control, ended_after=ended.steps
        )
        comparison, findings = resumption.comparison, resumed_causes(resumption)
        if not findings and (nothing := nothing_compared(comparison, even_without_steps=True)) is not None:
            findings = [nothing]
        return row_of(comparison, findings), {**missing, **not_compared(comparison)}


def _with_arguments(program: Program, arguments: Sequence[str]) -> Program:
    return replace(program, args=(*program.args, *arguments))
