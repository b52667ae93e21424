"""``verify``: does a run on several workers take the steps of the run on one?

Four kinds of runs, each stopped after some steps: the reference on one worker; the control, which is the
reference with gradients disturbed by their rounding, so that it is known what rounding does to this script;
one run for each number of workers; and where such a run differs and its workers do things apart that are
allowed to be (batch norm over each worker's share, dropout, augmentation), reference, control and run
again with these made one, or off.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samestep.autopilot.options import Options
from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.launch.job import Program
from samestep.launch.programs import Watch
from samestep.study.aligned import UnlikeError, aligned, without_parameters
from samestep.study.case import Case
from samestep.study.causes import causes
from samestep.study.compare import largest
from samestep.study.own_findings import PROVE_NOTHING, other_samples, own_findings
from samestep.study.seen import Seen
from samestep.study.verdict import Finding, Report, Row
from samestep.study.watched import Kind, Watched

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, and what it is."""

    program: Program
    kind: Kind


@dataclass(slots=True, kw_only=True)
class Verification:
    """What is to be verified.

    Args:
        script: the script.
        against: the one whose run on one worker is the reference; the script itself, if None.
        workers: numbers of workers to run it on.
        steps: of each run.
        scratch: an empty folder for all that the runs write.
        options: how a serial script is split across workers.
        watch: returns what runs each of so many workers, and ends a run that hangs.
        tell: told what is being done.
    """

    script: Script
    against: Script | None
    workers: Sequence[int]
    steps: int
    scratch: Path
    options: Options
    watch: Callable[[int, Kind], Watch]
    tell: Tell
    _neutral: tuple[Seen, Seen] | None = field(init=False, default=None)
    """Reference and control with what workers do apart made one, or off."""
    _limit: int | None = field(init=False, default=None)
    """The step from which on rounding alone changes which samples are used; None where it never does."""

    _unlike: bool = field(init=False, default=False)
    """Whether parameters could not be compared."""

    def run(self) -> Report:
        """Make all runs and compare them.

        Raises:
            UsageError: the reference fails by itself, or makes no step.
        """
        reference = self._reference()
        control = self._control()
        other = other_samples(reference, control)
        if other and other_samples(reference, self._seen(self._origin, 1, "once more")) is None:
            self._limit = other
            reference, control = reference.until(other), control.until(other)
        own = own_findings(reference, control)
        if any(finding.cause in PROVE_NOTHING for finding in own):
            return Report(rows=[], findings=own, steps=reference.steps)
        rows = [self._row(size, reference, control) for size in self.workers]
        not_seen = _not_seen(reference)
        if self._unlike:
            not_seen.append("parameter or gradient (which of one run's optimizers is which of the other's?)")
        if self._limit is not None:
            not_seen.append(f"step after {self._limit - 1}: from there on rounding alone changes the samples")
        return Report(rows=rows, findings=own, steps=reference.steps, not_seen=not_seen)

    @property
    def _origin(self) -> Script:
        return self.against or self.script

    def _reference(self) -> Seen:
        reference = self._seen(self._origin, 1, "the reference")
        facts = reference.facts
        if facts.ended not in ("steps", "end"):
            raise UsageError(
                f"{self._origin.program.target} fails on one worker already: {_ended(reference)}."
            )
        if not reference.steps:
            raise UsageError(
                f"{self._origin.program.target} made no training step that could be seen: no optimizer "
                "stepped, and no model was differentiated."
            )
        return reference

    def _control(self) -> Seen:
        control = self._seen(self._origin, 1, "again, gradients disturbed", disturb=True)
        if control.facts.ended not in ("steps", "end"):
            raise UsageError(
                f"{self._origin.program.target} fails on one worker where its gradients are changed by as "
                f"little as rounding may: {_ended(control)}."
            )
        return control

    def _row(self, size: int, reference: Seen, control: Seen) -> Row:
        case = self._case(reference, self._seen(self.script, size, ""), control)
        found = causes(case)
        is_other = any(not one.is_exception for one in found)
        if is_other and case.seen.failure is None and (apart := _apart(case.seen, self.options)):
            found = self._without(apart, size, found)
        return Row(
            workers=size,
            steps=case.steps,
            deviations=largest(case.deviations),
            is_rounding=case.first is None,
            findings=found,
        )

    def _case(self, reference: Seen, seen: Seen, control: Seen) -> Case:
        """Return a run beside its reference, their parameters in one order."""
        try:
            return Case(*aligned(reference, seen, control))
        except UnlikeError:
            self._unlike = True
            return Case(*(without_parameters(one) for one in (reference, seen, control)))

    def _without(self, apart: list[Finding], size: int, found: list[Finding]) -> list[Finding]:
        """Return the exceptions if nothing differs once they are away; otherwise what still does."""
        what = "what workers do apart made one, or off"
        if self._neutral is None:
            self._neutral = (
                self._seen(self._origin, 1, what, neutral=True),
                self._seen(self._origin, 1, f"{what}, gradients disturbed", disturb=True, neutral=True),
            )
        reference, control = self._neutral
        seen = self._seen(self.script, size, what, neutral=True)
        if seen.failure is not None:  # for nothing but this: it proves nothing
            return found
        still = causes(self._case(reference, seen, control))
        return still if any(not one.is_exception for one in still) else [*apart, *still]

    def _seen(
        self, script: Script, size: int, what: str, *, disturb: bool = False, neutral: bool = False
    ) -> Seen:
        self.tell(f"{script.program.target}: {counted(size, 'worker')}{what and f' ({what})'}")
        watched = Watched(
            program=script.program,
            kind=script.kind,
            size=size,
            steps=self.steps,
            folder=self.scratch / f"run-{len(list(self.scratch.iterdir()))}",
            options=self.options,
            watch=self.watch(size, script.kind),
            disturb=disturb,
            neutral=self.script.kind if neutral else None,
        )
        seen = watched.run()
        return seen if self._limit is None else seen.until(self._limit)


def _ended(seen: Seen) -> str:
    """Return how a run on one worker failed."""
    facts, failure = seen.facts, seen.failure
    if facts.ended != "killed":
        return f"{facts.ended}: {' '.join(facts.message.split())[:300]}".removesuffix(".")
    if failure is None:
        return "it ended, but not as Python ends (os._exit?), so that nothing is known of its end"
    return failure.message.removesuffix(".") or f"it died with exit code {failure.exit_code}"


def _not_seen(reference: Seen) -> list[str]:
    """Return what a run on one worker did not come to in its steps."""
    samples = any(reference.samples(step).size for step in range(reference.steps))
    possible = (
        ("evaluation", not reference.evaluated(reference.steps).size),
        ("second epoch", not samples or reference.first_epoch() == reference.steps),
    )
    return [what for what, is_missing in possible if is_missing]


def _apart(seen: Seen, options: Options) -> list[Finding]:
    """Return what the workers of a run did apart that is allowed to be."""
    facts = [trace.facts for trace in seen.traces]
    is_native = not seen.is_replicated
    possible = (
        (
            "batch-norm-local",
            "batch norm takes its statistics over each worker's share",
            any(one.batch_norm for one in facts) and (is_native or options.batch_norm == "local"),
        ),
        (
            "random-per-worker",
            "all workers draw the same dropout or noise, each for other samples (seed with seed + rank)"
            if len({one.stream for one in facts}) == 1
            else "each worker draws its own dropout or noise",
            any(one.drew for one in facts) and (is_native or options.random == "per-worker"),
        ),
        (
            "augmentation-per-worker",
            "each worker draws its own augmentation",
            any(one.augmented for one in facts) and is_native,
        ),
    )
    return [
        Finding(
            cause=cause,
            message=f"{message}; with that made one, or off, the runs are the same.",
            workers=seen.size,
            is_exception=True,
        )
        for cause, message, is_so in possible
        if is_so
    ]
