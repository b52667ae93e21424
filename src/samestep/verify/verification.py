"""Verifies that a script takes the same steps on several workers as on one (``samestep verify``).

There are six kinds of runs, each stopped after some steps:

* the reference on one worker;
* the control: the reference with its gradients disturbed by rounding, which measures the effect of rounding;
* one run for each number of workers, whose ranks list folders in different orders;
* if such a run differs and no cause explains it: reference, control and run again up to the step that
  differs, with the calls of all modules in that step;
* if such a run differs and has legitimate differences between ranks (batch norm over each worker's share,
  dropout, augmentation): reference, control and run again with these disabled or synchronized;
* if only values differ in single precision: reference, control and run again in double precision.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from samestep.autopilot.files.folder_listings import ShuffledListings
from samestep.autopilot.script.options import Options
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.launch.job import Program
from samestep.launch.local.child import Watch
from samestep.verify.causes import causes
from samestep.verify.compare import Comparison, largest
from samestep.verify.modules.first_difference import with_module
from samestep.verify.notes import (
    not_compared,
    not_reached,
    notes_of,
    nothing_compared,
    several_writers,
)
from samestep.verify.parameter_alignment import (
    UnmatchedParametersError,
    align_parameters,
    drop_parameters,
)
from samestep.verify.precision import decided_in_double, may_be_rounding
from samestep.verify.probed_run import Kind, TracedRun, rank_of_process
from samestep.verify.progress_line import progress_line
from samestep.verify.run_length import (
    LEAST_STEPS,
    TOTAL_S,
    FixedLength,
    RunLength,
    UntilEvaluated,
    WithinTime,
)
from samestep.verify.run_record import RunRecord
from samestep.verify.sample_causes import folder_order, hash_order
from samestep.verify.serial_findings import INCONCLUSIVE, baseline_findings, other_samples
from samestep.verify.source_traits import makes_generators, uses_hashes
from samestep.verify.verdict import Cause, Finding, NotCompared, Report, Row

Print = Callable[[str], None]
_RANDOM = ("random-per-worker", "random-alike-on-workers")
_NEUTRAL = "rank-dependent features disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and its kind."""

    program: Program
    kind: Kind


@dataclass(slots=True, kw_only=True)
class Verification:
    """A verification of one script."""

    script: Script  # the script
    against: Script | None  # script whose run on one worker is the reference; the script itself, if None
    workers: Sequence[int]  # numbers of workers to run it on
    # number of steps of each optimizer in each run; None for as many as show an evaluation and a second
    # epoch, if that takes no more than `TOTAL_S`
    steps: int | None
    scratch: Path  # an empty folder for all files of the runs
    options: Options  # how a serial script is split across workers
    # returns a function that runs each of the given number of workers, and ends a run that hangs
    watch: Callable[[int, Kind], Watch]
    tell: Print  # prints a line about progress
    # references and controls that are changed alike, by the changes
    _changed: dict[tuple[Any, ...], tuple[RunRecord, RunRecord]] = field(init=False, default_factory=dict)
    _length: RunLength = field(init=False)
    _limit_s: float = field(init=False)  # time limit of a run in seconds, if `steps` is None
    _own: Sequence[Finding] = field(init=False, default=())  # faults and notes of the run on one worker
    # first step whose samples depend on rounding; None if there is none
    _limit: int | None = field(init=False, default=None)
    # what runs on several workers did not record
    _missing: dict[NotCompared, str] = field(init=False, default_factory=dict)
    _unmatched: bool = field(init=False, default=False)  # whether parameters of two runs cannot be matched

    def run(self) -> Report:
        """Execute all runs and compare them.

        Raises:
            UsageError: the reference fails, or has no step.
        """
        reference = self._on_one_worker("reference", "already")
        if not reference.steps:
            raise UsageError(
                f"{self._origin.program.target} made no training step on one worker: no optimizer stepped, "
                "and no backward ran."
            )
        if self.steps is None:
            self._length = _length_of(reference)
        change = "when its gradients change by as little as rounding changes them"
        control = self._on_one_worker("gradients disturbed", change, disturb=True)
        other = other_samples(reference, control)
        if other and other_samples(reference, self._run(self._origin, 1, "again")) is None:
            self._limit = other
            reference, control = reference.until(other), control.until(other)
        own = baseline_findings(reference, control)
        self._own = [*own, *notes_of(reference)]
        if any(finding.cause in INCONCLUSIVE for finding in own):
            return Report(rows=[], findings=self._own, steps=reference.steps)
        rows = [self._row(size, reference, control) for size in self.workers]
        missing = {**not_reached(reference), **self._missing}
        if self._unmatched:
            missing["parameters"] = "parameter or gradient (those of two optimizers cannot be matched)"
        if self._limit is not None:
            missing["later-steps"] = f"step after {self._limit - 1}: from there rounding changes the samples"
        return Report(rows=rows, findings=self._own, steps=reference.steps, not_compared=missing)

    def __post_init__(self) -> None:
        # The reference, its control, perhaps a third run on one worker, and each number of workers.
        self._limit_s = TOTAL_S / (3 + len(self.workers))
        self._length = (
            WithinTime(UntilEvaluated(), self._limit_s)
            if self.steps is None
            else FixedLength(self.steps, of_each=True)
        )

    @property
    def _origin(self) -> Script:
        return self.against or self.script

    def _on_one_worker(self, what: str, when: str, *, disturb: bool = False) -> RunRecord:
        """Return a run of the reference script on one worker; `when` is a part of the message if it fails."""
        run = self._run(self._origin, 1, what, disturb=disturb)
        if run.facts.ended not in ("steps", "end"):
            raise UsageError(f"{self._origin.program.target} fails on one worker {when}: {_failure(run)}.")
        return run

    def _row(self, size: int, reference: RunRecord, control: RunRecord) -> Row:
        comparison, of_order = self._with_other_orders(reference, size, control)
        found, run = causes(comparison), comparison.run
        if not found and run.failure is None:
            of_order += self._of_hashes(size, comparison)
        self._missing |= not_compared(comparison)
        if not found and (nothing := nothing_compared(comparison)) is not None:
            found = [nothing]
        differs = any(one.kind == "fault" for one in found)
        exceptions: list[Finding] = []
        if differs and run.failure is None:
            found, exceptions = self._without(_exceptions(comparison), size, found)
        if may_be_rounding(comparison, found):
            found = decided_in_double(found, self._repeated(size, neutral=bool(exceptions), double=True))
        if not exceptions and run.failure is None and any(one.kind == "fault" for one in found):
            found = with_module(found, comparison, partial(self._recorded, size, neutral=False))
        return Row(
            workers=size,
            steps=comparison.steps,
            deviations=largest(comparison.deviations),
            is_rounding=comparison.first is None or any(one.cause == "single-precision" for one in found),
            findings=[*of_order, *found, *notes_of(run, known=self._own), *several_writers(run)],
        )

    def _with_other_orders(
        self, reference: RunRecord, size: int, control: RunRecord
    ) -> tuple[Comparison, list[Finding]]:
        """Return the comparison of a run, and the exception that it depends on the order of a folder.

        The ranks get the folders that they list in other orders, but if the run differs, in the same one.
        """
        order = None if self.script.kind == "serial" else ShuffledListings(rank_of_process)
        comparison = self._compared(reference, self._run(self.script, size, "", order=order), control)
        listed = comparison.run.listed
        faults = [one.cause for one in causes(comparison) if one.kind == "fault"]
        if not (listed and faults):
            return comparison, []
        same = self._compared(reference, self._run(self.script, size, "folders in one order"), control)
        if faults == [one.cause for one in causes(same) if one.kind == "fault"]:
            return same, []
        return same, [folder_order(comparison, listed)]

    def _of_hashes(self, size: int, comparison: Comparison) -> list[Finding]:
        """Return the exception that a run differs if each rank has a hash seed of its own."""
        if size == 1 or self.script.kind != "native" or not uses_hashes(self.script.program):
            return []
        run = self._run(self.script, size, "each rank with its own order of sets", own_hashes=True)
        other = self._compared(comparison.reference, run, comparison.control)
        return hash_order(other)

    def _compared(self, reference: RunRecord, run: RunRecord, control: RunRecord) -> Comparison:
        """Return the comparison of a run, its parameters in the order of the reference's."""
        if run.runs_once and run.facts.ended == "steps" and run.steps < reference.steps:  # its time was over
            reference, control = reference.until(run.steps), control.until(run.steps)
            self._missing |= not_reached(reference)
        try:
            return Comparison(*align_parameters(reference, run, control))
        except UnmatchedParametersError:
            self._unmatched = True
            return Comparison(*(drop_parameters(one) for one in (reference, run, control)))

    def _without(
        self, exceptions: list[Finding], size: int, found: list[Finding]
    ) -> tuple[list[Finding], list[Finding]]:
        """Return the exceptions after what remains with them disabled, and the exceptions alone."""
        may_draw = self.script.kind != "serial" and makes_generators(self.script.program)
        repeated = self._repeated(size, neutral=True) if exceptions or may_draw else None
        if repeated is None:  # or only these runs failed, so they prove nothing
            return found, exceptions
        of_generators = _own_generators(repeated)
        if of_generators is not None and all(one.cause not in _RANDOM for one in exceptions):
            exceptions = [*exceptions, of_generators]
        if not exceptions:
            return found, []
        still = with_module(causes(repeated), repeated, partial(self._recorded, size, neutral=True))
        remains = any(one.kind == "fault" for one in still)
        result = "the other differences remain without it" if remains else "without it the runs are the same"
        exceptions = [replace(one, message=f"{one.message}; {result}.") for one in exceptions]
        return [*still, *exceptions], exceptions

    def _repeated(self, size: int, *, neutral: bool, double: bool = False) -> Comparison | None:
        """Return the comparison of runs with rank-dependent features disabled, in double precision, or both.

        It is None if one of them fails.
        """
        what = ", ".join([*[_NEUTRAL] * neutral, *["in double precision"] * double])
        runs = self._alike(size, what, neutral=neutral, double=double)
        if any(one.failure is not None or not one.steps for one in runs):
            return None
        return self._compared(*runs)

    def _recorded(self, size: int, step: int, *, neutral: bool) -> Comparison:
        """Return the comparison of runs up to a step, with the modules of that step."""
        return self._compared(*self._alike(size, f"modules of step {step}", neutral=neutral, modules_of=step))

    def _alike(self, size: int, what: str, **changed: Any) -> tuple[RunRecord, RunRecord, RunRecord]:
        """Return reference, run and control with the same changes; those on one worker are executed once."""
        key = tuple(changed.items())
        if key not in self._changed:
            disturbed = f"{what}, gradients disturbed"
            self._changed[key] = (
                self._run(self._origin, 1, what, **changed),
                self._run(self._origin, 1, disturbed, disturb=True, **changed),
            )
        reference, control = self._changed[key]
        return reference, self._run(self.script, size, what, **changed), control

    def _length_of_run(self, script: Script, size: int) -> RunLength:
        """Return the length of a run; rank 0 of a serial script can end one that takes too long."""
        if self.steps is None and script.kind == "serial" and size > 1:
            return WithinTime(self._length, self._limit_s)
        return self._length

    def _run(
        self,
        script: Script,
        size: int,
        what: str,
        *,
        neutral: bool = False,
        modules_of: int | None = None,
        **changed: Any,
    ) -> RunRecord:
        """Run a script; `what` names the run, and `changed` are further arguments of `TracedRun`."""
        title = f"{script.program.target}: {counted(size, 'worker')}{what and f' ({what})'}"
        self.tell(title)
        with progress_line(title) as progress:
            record = TracedRun(
                program=script.program,
                kind=script.kind,
                size=size,
                length=self._length_of_run(script, size)
                if modules_of is None
                else FixedLength(modules_of + 1),
                progress=progress,
                folder=self.scratch / f"run-{len(list(self.scratch.iterdir()))}",
                options=self.options,
                watch=self.watch(size, script.kind),
                neutral=self.script.kind if neutral else None,
                has_other_reference=self.against is not None and script is self.script,
                modules_of=modules_of,
                **changed,
            ).run()
        return record if self._limit is None else record.until(self._limit)


def _failure(run: RunRecord) -> str:
    """Return how a run on one worker failed."""
    facts, failure = run.facts, run.failure
    if facts.ended != "killed":
        return f"{facts.ended}: {' '.join(facts.message.split())[:300]}".removesuffix(".")
    if failure is None:
        return "its process exited without Python's cleanup (os._exit?) and reported no error"
    return failure.message.removesuffix(".") or f"it died with exit code {failure.exit_code}"


def _length_of(reference: RunRecord) -> RunLength:
    """Return the length of the runs after the reference, which stops early where the script is longer."""
    is_whole = reference.facts.ended != "steps"
    return FixedLength(2 * reference.steps + LEAST_STEPS if is_whole else reference.steps)


def _exceptions(comparison: Comparison) -> list[Finding]:
    """Return the legitimate differences between the ranks of a run, with the largest deviation."""
    run = comparison.run
    facts = [trace.facts for trace in run.traces]
    is_native = not run.runs_once
    possible: tuple[tuple[Cause, str, bool], ...] = (
        (
            "batch-norm-local",
            "batch norm takes its statistics over each worker's share",
            any(one.batch_norm for one in facts) and is_native,
        ),
        (*_draws({one.stream for one in facts}), any(one.drew for one in facts) and is_native),
        (
            "augmentation-per-worker",
            "each worker draws its own augmentation",
            any(one.augmented for one in facts) and is_native,
        ),
        (
            "compressed-gradients",
            f"{run.facts.compressed} compresses the gradients of each rank before they are averaged",
            bool(run.facts.compressed),
        ),
    )
    return [
        Finding(
            cause=cause,
            message=message,
            workers=run.size,
            max_relative_deviation=comparison.largest_deviation,
            kind="exception",
        )
        for cause, message, applies in possible
        if applies
    ]


def _draws(streams: Set[int]) -> tuple[Cause, str]:
    """Return the exception of random numbers whose generators are in these states on the ranks."""
    if len(streams) == 1:
        return (
            "random-alike-on-workers",
            "all workers draw the same dropout or noise for different samples (seed with seed + rank)",
        )
    return "random-per-worker", "each worker draws its own dropout or noise"


def _own_generators(neutral: Comparison) -> Finding | None:
    """Return the exception that ranks draw noise from generators of the script, if a neutral run found it."""
    streams = {trace.facts.own_stream for trace in neutral.run.traces}
    if neutral.run.runs_once or not any(streams):
        return None
    cause, message = _draws(streams)
    return Finding(cause=cause, message=message, workers=neutral.size, kind="exception")
