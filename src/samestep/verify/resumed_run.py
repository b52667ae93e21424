"""Verifies that a script which is ended and started again takes the steps of one that was not ended.

There are three kinds of runs: the uninterrupted one and its control, whose gradients are disturbed by
rounding; one that is ended after some steps as a user's run is; and, for each number of workers, one that the
script's own way to resume continues, with the files of the one that was ended.

A resumed run counts its steps from 0. The step of the uninterrupted run that it continues is the one that
begins with the same weights. From there on samples, learning rates, random draws, gradients, updates and
prints are compared; where several differ, the earliest in this order explains the others.
"""

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from samestep.base.errors import UsageError
from samestep.base.units import counted
from samestep.verify.causes import between_ranks, causes
from samestep.verify.compare import Comparison, are_same_rates, rounding_of
from samestep.verify.parameter_alignment import UnmatchedParametersError, align_parameters, drop_parameters
from samestep.verify.printed_lines import last_lines, without_summary
from samestep.verify.rank_features import exceptions_of
from samestep.verify.run_length import (
    LEAST_STEPS,
    LEAST_STEPS_OF_RANKS,
    LEAST_STEPS_OF_SLOW_SCRIPTS,
    TOTAL_S,
    EndedAfter,
    FixedLength,
    RunLength,
    UntilEvaluatedAfter,
    WithinTime,
)
from samestep.verify.run_record import RunRecord, relative, same_samples
from samestep.verify.script_findings import (
    UNMATCHED,
    baseline_findings,
    is_conclusive,
    not_compared,
    not_reached,
    nothing_compared,
    other_samples,
    row_of,
)
from samestep.verify.script_runs import Script, ScriptRuns, require_end
from samestep.verify.verdict import Cause, Finding, NotCompared, Report, Row

EndedBy: TypeAlias = Literal["stop", "term", "kill"]
SIGNALS: Mapping[EndedBy, int] = {"stop": 0, "term": signal.SIGTERM, "kill": signal.SIGKILL}
"""The signal that ends a run; 0 for none, as where the step clock ends it without Python's cleanup."""
_FILES = "files-of-the-ended-run"
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
        return WithinTime(UntilEvaluatedAfter(steps), TOTAL_S / 4, least=steps + LEAST_STEPS_OF_SLOW_SCRIPTS)

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
            files=self.runs.scratch / _FILES,
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
        files = self.runs.scratch / f"{_FILES}-{size}"
        shutil.copytree(self.runs.scratch / _FILES, files, symlinks=True)
        program = self.script.program
        again = replace(self.script, program=replace(program, args=(*program.args, *self.arguments)))
        more = LEAST_STEPS if usual.facts.ended == "end" else 0  # to find that it does not end
        length = FixedLength(usual.steps + more)
        resumed = self.runs.run(again, size, "resumed", length=length, files=files)
        resumed = with_optimizers_of(usual, resumed)
        missing: dict[NotCompared, str] = {}
        try:
            usual, resumed, control = align_parameters(usual, resumed, control)
        except UnmatchedParametersError:
            usual, resumed, control = map(drop_parameters, (usual, resumed, control))
            missing["parameters"] = UNMATCHED
        resumption = Resumption(
            replace(usual, origin="uninterrupted"), resumed, control, ended_after=ended.steps
        )
        comparison, findings = resumption.comparison, resumed_causes(resumption)
        findings = findings or nothing_compared(comparison, even_without_steps=True)
        return row_of(comparison, findings), {**missing, **not_compared(comparison)}


_OF_PRINTS = ("printed", "local-metric")
"""Causes of printed results."""


@dataclass(frozen=True)
class Resumption:
    """A resumed run, and the one that it should continue."""

    usual: RunRecord  # the uninterrupted run
    resumed: RunRecord  # the run that was started again
    control: RunRecord  # the uninterrupted run again, its gradients disturbed by rounding
    ended_after: int  # number of steps of the run that was ended

    @cached_property
    def distances(self) -> list[float]:
        """Distance of the weights with which the resumed run begins to those at each step."""
        first = self.resumed.at(0)
        begin = np.array(first.before)
        return [
            relative(begin, np.array(step.before)) if step.optimizer == first.optimizer else np.inf
            for step in map(self.usual.at, range(min(self.usual.steps, self.ended_after + 1)))
        ]

    @cached_property
    def begins_at(self) -> int:
        """The step of the uninterrupted run that begins with the resumed run's weights, or with the nearest.

        Of several, as at a learning rate of 0, and without parameters, it is the last one with the samples of
        the resumed run's first step.
        """
        if not self.resumed.steps:
            return min(self.ended_after, self.usual.steps)
        steps: list[int] = [*range(min(self.usual.steps, self.ended_after + 1))]
        if self.resumed.at(0).before:
            least = min(self.distances)
            steps = [step for step in steps if self.distances[step] == least]
        first = self.resumed.samples(0)
        equal = [step for step in steps if same_samples(self.usual.samples(step), first)]
        return max(equal or steps)

    @property
    def has_its_weights(self) -> bool:
        """Whether the weights at the beginning are those of that step, up to rounding."""
        if not self.resumed.steps or not self.resumed.at(0).before:
            return True
        return self.distances[self.begins_at] <= rounding_of(self.usual.facts.parameter_epsilon)

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison with the uninterrupted run from that step on."""
        usual, control = self.usual.since(self.begins_at), self.control.since(self.begins_at)
        run = self.resumed.until(usual.steps)
        if usual.facts.ended == "steps" and run.steps == usual.steps:  # what it prints after these
            run = _printing(run, run.facts.printed[: run.at(run.steps - 1).printed])
        usual = _printing_like(usual, run.facts.printed)
        return Comparison(usual, run, _printing_like(control, usual.facts.printed))

    @cached_property
    def epoch(self) -> range:
        """The steps of the uninterrupted run in the epoch in which the resumed run begins."""
        return _epoch(self.usual, self.begins_at)

    @cached_property
    def resumed_epoch(self) -> range:
        """The steps of the resumed run in that epoch; as many as are left of it, if no loader counts them."""
        steps = _epoch(self.resumed, 0)
        is_counted = len(steps) < self.resumed.steps or self.epoch.stop == self.usual.steps
        return steps if is_counted else range(min(len(steps), self.epoch.stop - self.begins_at))


def with_optimizers_of(usual: RunRecord, run: RunRecord) -> RunRecord:
    """Return a run with the optimizers numbered as in another one, which may have stepped others before."""
    known, held = usual.facts.parameters, run.facts.parameters
    numbers: dict[int, int] = {}
    for number, parameters in enumerate(held):
        free = (k for k, of_known in enumerate(known) if of_known == parameters and k not in numbers.values())
        numbers[number] = next(free, -1)
    if -1 in numbers.values() or all(number == k for number, k in numbers.items()):
        return run
    traces = []
    for trace in run.traces:
        steps = [replace(step, optimizer=numbers.get(step.optimizer, step.optimizer)) for step in trace.steps]
        traces.append(replace(trace, facts=replace(trace.facts, parameters=known), steps=steps))
    return replace(run, traces=traces)


def _printing(run: RunRecord, text: str, *, dropped: int = 0) -> RunRecord:
    """Return a run that has printed a text: its own, without its beginning or its end."""
    first = run.traces[0]
    steps = [replace(step, printed=min(max(0, step.printed - dropped), len(text))) for step in first.steps]
    trace = replace(first, steps=steps, facts=replace(first.facts, printed=text))
    return replace(run, traces=[trace, *run.traces[1:]])


def _printing_like(run: RunRecord, printed: str) -> RunRecord:
    """Return a run without those of its first lines that another text has fewer of."""
    text = last_lines(run.facts.printed, printed)
    return _printing(run, text, dropped=len(run.facts.printed) - len(text))


def _epoch(run: RunRecord, step: int) -> range:
    """Return the steps of the pass over a loader, or else over the samples, that a step belongs to."""
    passes = [run.at(index).passes for index in range(run.steps)]
    if not any(passes):
        passes = _passes_by_samples(run)
    if step >= len(passes):
        return range(step, step)
    start = next((k + 1 for k in range(step - 1, -1, -1) if passes[k] != passes[step]), 0)
    stop = next((k for k in range(step + 1, len(passes)) if passes[k] != passes[step]), len(passes))
    return range(start, stop)


def _passes_by_samples(run: RunRecord) -> list[int]:
    """Return, for each step, how often samples were used again before."""
    seen: set[float] = set()
    passes: list[int] = []
    for step in range(run.steps):
        keys = set(run.key_counts([step]))
        if keys & seen:
            seen = set()
        passes.append((passes[-1] if passes else 0) + (not seen and step > 0))
        seen |= keys
    return passes


def resumed_causes(resumption: Resumption) -> list[Finding]:
    """Return the faults of a resumed run, the gravest first."""
    ending = _failed(resumption) or _not_resumed(resumption)
    if ending is not None:
        return [ending]
    weights, short = _weights(resumption), _short(resumption)
    findings = [finding for finding in (short, weights) if finding is not None]
    of_samples = None if short is not None else _samples(resumption)
    of_rates = _rate(resumption)
    findings += [finding for finding in (of_samples, of_rates) if finding is not None]
    if findings:
        return findings
    if not resumption.resumed.runs_once and resumption.resumed.size != resumption.usual.size:
        exceptions = exceptions_of(resumption.comparison) if resumption.comparison.first is not None else []
        if not exceptions:
            return _of_other_causes(resumption)
        # An exception explains a distance to the uninterrupted run, and none between weights of the ranks.
        of_ranks = between_ranks(resumption.comparison)
        return [*(_of_whole_training(fault, resumption.begins_at) for fault in of_ranks), *exceptions]
    of_values = _optimizer(resumption) or _draws(resumption)
    if of_values is not None:
        return [of_values]
    return _of_other_causes(resumption) or [finding for finding in [_long(resumption)] if finding]


def _of_other_causes(resumption: Resumption) -> list[Finding]:
    """Return the causes that any two runs can have, but for those that a resumed run explains."""
    findings = []
    for finding in causes(resumption.comparison):
        if finding.cause in ("printed-text", "number-of-steps"):
            continue
        # The first mean of an epoch that was resumed amid is one of the rest.
        is_mean = finding.cause in _OF_PRINTS and not _prints_differ_later(resumption)
        kind = "exception" if is_mean else finding.kind
        findings.append(_of_whole_training(replace(finding, kind=kind), resumption.begins_at))
    return findings


def _of_whole_training(finding: Finding, begins_at: int) -> Finding:
    """Return a finding of the steps after a resumption with its step in the whole training."""
    if finding.step is None:
        return finding
    message = f"{finding.message} (This message counts steps from the resumption at step {begins_at}.)"
    return replace(finding, step=begins_at + finding.step, message=message)


def _prints_differ_later(resumption: Resumption) -> bool:
    """Return whether printed results differ that no mean over the steps of one process explains.

    Such a mean is that of an epoch that was resumed amid, or one in a summary that is printed at the end.
    """
    comparison, epoch = resumption.comparison, resumption.epoch
    is_amid = resumption.begins_at not in (epoch.start, resumption.usual.steps)
    past = epoch.stop + 1 - resumption.begins_at if is_amid else 0  # past the prints between two epochs
    if past >= comparison.steps:
        return False
    records = (record.since(past) for record in (comparison.reference, comparison.run, comparison.control))
    later = causes(Comparison(*map(_without_summary, records)))
    return any(finding.cause in _OF_PRINTS for finding in later)


def _without_summary(run: RunRecord) -> RunRecord:
    return _printing(run, without_summary(run.facts.printed, run.at(run.steps - 1).printed))


def _failed(resumption: Resumption) -> Finding | None:
    """Find that the resumed run fails, if it does so before the uninterrupted one ends."""
    run = resumption.resumed
    if run.facts.ended in ("steps", "end"):
        return None
    return next(iter(causes(resumption.comparison)), None)


def _not_resumed(resumption: Resumption) -> Finding | None:
    """Find that the script begins anew."""
    if resumption.begins_at or not resumption.has_its_weights or not resumption.resumed.steps:
        return None
    return _finding(
        resumption,
        "not-resumed",
        f"the run that was started again begins with the weights of step 0, after a run of "
        f"{counted(resumption.ended_after, 'step')}. Give "
        "the script's arguments in --resume-with, and a later step than that of its first checkpoint in "
        "--resume-at.",
        0,
    )


def _weights(resumption: Resumption) -> Finding | None:
    """Find that no step begins with the weights of the resumed run."""
    if resumption.has_its_weights:
        return None
    distance = resumption.distances[resumption.begins_at]
    return _finding(
        resumption,
        "resumed-weights",
        f"no step of the uninterrupted run up to step {resumption.ended_after} begins with the weights of "
        f"the resumed run; step {resumption.begins_at} is the nearest, with a deviation of {distance:.1e}.",
        resumption.begins_at,
    )


def _short(resumption: Resumption) -> Finding | None:
    """Find that the script ends by itself before it has made the steps that are left."""
    run, usual, begin = resumption.resumed, resumption.usual, resumption.begins_at
    left = usual.steps - begin
    if run.facts.ended != "end" or run.steps >= left:
        return None
    missing = left - run.steps
    goes_on = run.steps and same_samples(run.samples(0), usual.samples(begin))
    if run.steps and not goes_on and not _continues_after(resumption, missing):
        return None
    return _finding(
        resumption,
        "resumed-short",
        f"the resumed run ends after {counted(run.steps, 'step')} and without an error, where {left} are "
        f"left: {counted(missing, 'step')} are never made.",
        begin,
    )


def _long(resumption: Resumption) -> Finding | None:
    """Find that the script goes on where the uninterrupted run ended by itself, as by early stopping."""
    left = resumption.usual.steps - resumption.begins_at
    if resumption.usual.facts.ended != "end" or resumption.resumed.steps <= left:
        return None
    return _finding(
        resumption,
        "number-of-steps",
        f"the uninterrupted run ends after step {resumption.usual.steps - 1}, and the resumed one goes on: "
        "what decides on the end (a best result, a patience, a count of steps) is not restored.",
        resumption.usual.steps,
    )


def _continues_after(resumption: Resumption, missing: int) -> bool:
    """Return whether the resumed run begins a whole number of epochs too late."""
    later = resumption.begins_at + missing
    passes = {resumption.usual.at(step).passes for step in range(resumption.begins_at, later)}
    is_epoch = resumption.begins_at == resumption.epoch.start or len(passes) > 1
    if not is_epoch or later <= resumption.ended_after:  # the run that was ended has made these steps
        return False
    return same_samples(resumption.resumed.samples(0), resumption.usual.samples(later))


def _samples(resumption: Resumption) -> Finding | None:
    """Find the first step with other samples, and what became of those of the epoch."""
    differing = other_samples(resumption.comparison.run, resumption.comparison.reference)
    if differing is None:
        return None
    cause, message = _of_samples(resumption, differing)
    return _finding(resumption, cause, message, resumption.begins_at + differing)


def _of_samples(resumption: Resumption, differing: int) -> tuple[Cause, str]:
    """Return the cause of other samples in a step of the resumed run, and the message about it."""
    for test in (_in_later_epoch, _after_skipped_steps, _ahead):
        if (cause := test(resumption, differing)) is not None:
            return cause
    usual, run, begin = resumption.usual, resumption.resumed, resumption.begins_at
    step = begin + differing
    before = usual.key_counts(range(resumption.epoch.start, begin))
    rest = usual.key_counts(range(begin, resumption.epoch.stop))
    made = run.key_counts(resumption.resumed_epoch)
    if not made & (before + rest):
        return _of_no_sample(resumption, step)
    is_cut = len(resumption.resumed_epoch) == run.steps or resumption.epoch.stop == usual.steps
    repeated, skipped = ((made - rest) & before).total(), 0 if is_cut else (rest - made).total()
    again, never = f"{counted(repeated, 'sample')} of the epoch a second time", f"{skipped} never"
    if repeated and not skipped:
        return "resumed-repeats", f"the resumed run uses {again}."
    if skipped and not repeated:
        return "resumed-skips", f"the resumed run never uses {counted(skipped, 'sample')} of this epoch."
    use = f", {again} and {never}" if repeated else ""
    return "resumed-other-order", f"the resumed run uses the samples of the epoch in another order{use}."


def _of_no_sample(resumption: Resumption, step: int) -> tuple[Cause, str]:
    """Return the cause of samples of which none belongs to the epoch, and the message about it."""
    usual = resumption.usual
    counts = usual.key_counts(range(usual.steps)).values()
    has_noise = (
        usual.at(usual.steps - 1).passes > 0 and max(counts, default=0) == 1
    )  # in each epoch another one
    is_drawn = usual.facts.augmented or has_noise
    uses = f"step {step} uses other samples than in the uninterrupted run"
    if is_drawn:
        return "resumed-draws", (
            f"{uses}: its data set draws random numbers, and their generator has another state."
        )
    return "resumed-other-order", f"{uses}: none of them is of this epoch."


def _in_later_epoch(resumption: Resumption, differing: int) -> tuple[Cause, str] | None:
    """Find that the order differs in an epoch after the one that was resumed."""
    step = resumption.begins_at + differing
    if differing < len(resumption.resumed_epoch) and step < resumption.epoch.stop:
        return None
    return "resumed-other-order", (
        f"step {step}, in an epoch after the resumed one, uses other samples than in the uninterrupted run: "
        "the generator of the order has another state."
    )


def _after_skipped_steps(resumption: Resumption, differing: int) -> tuple[Cause, str] | None:
    """Find that a step of the optimizer comes after more backwards, whose samples it has, too."""
    step = resumption.begins_at + differing
    backwards, usual = resumption.resumed.at(differing).backwards, resumption.usual.at(step).backwards
    missing = resumption.usual.key_counts([step]) - resumption.resumed.key_counts([differing])
    if backwards <= usual or missing:
        return None
    return "resumed-optimizer", (
        f"step {step} follows {counted(backwards, 'backward')}, in the uninterrupted run {usual}: steps are "
        "skipped, as by a GradScaler whose scale is not restored."
    )


def _ahead(resumption: Resumption, differing: int) -> tuple[Cause, str] | None:
    """Find that two steps in succession have the samples of later ones."""
    usual, run, begin = resumption.usual, resumption.resumed, resumption.begins_at + differing
    pairs = range(min(2, run.steps - differing))
    equal = [
        step
        for step in range(usual.steps - 1)
        if all(same_samples(run.samples(differing + k), usual.samples(step + k)) for k in pairs)
    ]
    if not equal or equal[0] <= begin:  # an order that epochs have in common: that is a repetition
        return None
    return "resumed-skips", (
        f"the resumed run has the weights of step {begin}, and uses the samples of step {equal[0]}."
    )


def _rate(resumption: Resumption) -> Finding | None:
    """Find the first step with another learning rate."""
    first = resumption.comparison.first_of("learning rate")
    if first is None:
        return None
    here, step = resumption.resumed.at(first.step).learning_rates, resumption.begins_at + first.step
    usual = [resumption.usual.at(index).learning_rates for index in range(resumption.usual.steps)]
    optimizer = resumption.usual.at(step).optimizer
    equal = (
        index
        for index, rates in enumerate(usual)
        if resumption.usual.at(index).optimizer == optimizer and are_same_rates(rates, here)
    )
    of_step = next(equal, None)
    pairs = enumerate(zip(here, usual[step], strict=False))
    group = next((number for number, (rate, expected) in pairs if not are_same_rates([rate], [expected])), 0)
    where = "" if of_step is None else f", which is that of step {of_step}"
    return _finding(
        resumption,
        "resumed-rate",
        f"the learning rate of step {step} is {here[group]:g}{where}; in the uninterrupted run it is "
        f"{usual[step][group]:g}.",
        step,
    )


def _optimizer(resumption: Resumption) -> Finding | None:
    """Find that the same gradient makes another update."""
    first = resumption.comparison.first
    if first is None or first.quantity != "update":
        return None
    step = resumption.begins_at + first.step
    return _finding(
        resumption,
        "resumed-optimizer",
        f"the gradient of step {step} is that of the uninterrupted run, but the update deviates by "
        f"{first.value:.1e}: the state of the optimizer (momentum, averages, its count of steps) is not "
        "restored.",
        step,
    )


def _draws(resumption: Resumption) -> Finding | None:
    """Find that dropout or noise is drawn from another state of the generators."""
    first = resumption.comparison.first
    if first is None or first.quantity not in ("loss", "gradient", "gradient norm"):
        return None
    step = resumption.begins_at + first.step
    here, usual = resumption.resumed.at(first.step).stream, resumption.usual.at(step).stream
    if not usual or here == usual:
        return None
    return _finding(
        resumption,
        "resumed-draws",
        f"the random numbers of step {step} (dropout, noise) are drawn from another state of the generators: "
        "save and restore that of torch, NumPy and Python.",
        step,
    )


def _finding(resumption: Resumption, cause: Cause, message: str, step: int) -> Finding:
    return Finding(
        cause=cause,
        message=message,
        workers=resumption.resumed.size,
        step=step,
        max_relative_deviation=resumption.comparison.largest_deviation,
    )
