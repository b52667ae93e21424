"""Holds the record of a run: the samples, loss and gradient of each step, over all ranks.

The records of ranks that do one work together are merged, so that each sample and each update counts once.
Ranks of a tensor parallel group record the same batch: one of them counts. Ranks that average their
parameters after each step, in place of their gradients, make the step of the averaged gradient; so do those
whose optimizer reduces gradients in its step (ZeRO). The output is that of the first rank that prints.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from samestep.launch.local.failure import Failure
from samestep.verify.tensor_summary import KEY_DECIMALS, rounded_keys
from samestep.verify.trace import Facts, ModuleRecord, Step, Trace
from samestep.verify.verdict import Origin

Vector = npt.NDArray[np.float64]
EQUAL = 1e-6
"""Largest relative difference between ranks that the rounding of a collective explains: eight units in the
last place of single precision."""

_SAME_KEY = 1e-9  # relative tolerance for keys of equal samples, which are sums in double precision
_CLOSE_KEY = 1e-3
"""Tolerance relative to the keys' spread: another model's output, which is rounded, can be the input. It is a
guess, far below the distance of two samples."""


class LostParameter(NamedTuple):
    """A parameter that is trained on one worker, and by no rank of another run."""

    name: str  # index of the model and name in it, on one worker
    is_held: bool  # whether a model of a rank has it, in no optimizer


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a run."""

    traces: Sequence[Trace]  # one for each rank
    runs_once: bool = False  # whether it is a serial script, which one worker runs
    failure: Failure | None = None  # what ended the run, if it failed
    averages_parameters: bool = False  # whether the ranks average parameters after a step, not gradients
    # whether the ranks have other gradients before a step, and equal parameters after it
    reduces_in_step: bool = False
    modules: Sequence[ModuleRecord] = ()  # the module calls of one step on each rank, if they were recorded
    # number of workers, if not each of them has a trace, as in a serial script or a golden run
    workers: int | None = None
    # parameters of the reference that no optimizer of this run has, though they change there
    lost: Sequence[LostParameter] = ()
    holds_parts: bool = False  # whether some ranks lack parameters that others have
    has_unmatched: bool = False  # whether parameters were left out because they cannot be matched
    origin: Origin = "one worker"  # what a run is the reference of a comparison as

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.traces) if self.workers is None else self.workers

    @property
    def facts(self) -> Facts:
        """Facts about rank 0, which prints."""
        return self.traces[0].facts

    @property
    def steps(self) -> int:
        """Number of steps that all ranks have."""
        return min(len(trace.steps) for trace in self.traces)

    @property
    def listed(self) -> Sequence[str]:
        """Folders that ranks listed in another order than rank 0."""
        return list(dict.fromkeys(path for trace in self.traces for path in trace.facts.listed))

    @property
    def shares_batch(self) -> bool:
        """Whether ranks compute one batch together (tensor parallel)."""
        return any(trace.facts.same_batch for trace in self.traces)

    def until(self, step: int) -> "RunRecord":
        """Return the record without a step and the steps after it."""
        return replace(self, traces=[_truncated(trace, step) for trace in self.traces])

    def cut(self, step: int) -> "RunRecord":
        """Return the record as if the run had been stopped before a step."""
        traces = [
            replace(trace, facts=replace(trace.facts, ended="steps")) for trace in self.until(step).traces
        ]
        return replace(self, traces=traces)

    def since(self, step: int) -> "RunRecord":
        """Return the record of a step and the steps after it, which count from 0."""
        return replace(self, traces=[_without_first(trace, step) for trace in self.traces])

    def steps_alone(self, number: int) -> "RunRecord":
        """Return the record of the first steps, without what is printed or evaluated beside them."""
        traces = []
        for trace in self.until(number).traces:
            facts = replace(trace.facts, evaluated=[], combined=[], gathered=False, printed="")
            steps = [replace(step, evaluated=[], combined=[], printed=0) for step in trace.steps]
            traces.append(replace(trace, facts=facts, steps=steps))
        return replace(self, traces=traces)

    def at(self, step: int) -> Step:
        """Return a step of rank 0, or of the first rank that made it."""
        return next((rank_step for rank_step in self.of_ranks(step)), self.traces[0].steps[step])

    def of_ranks(self, step: int) -> Sequence[Step]:
        """Return a step of each rank that made it."""
        return [trace.steps[step] for trace in self.traces if not trace.steps[step].joined]

    def counts(self, step: int) -> Sequence[int]:
        """Return the numbers of samples of the ranks that get samples in any step."""
        feeding = [any(past_step.samples for past_step in trace.steps[: self.steps]) for trace in self.traces]
        return [
            len(trace.steps[step].samples)
            for trace, feeds in zip(self.traces, feeding, strict=True)
            if feeds or not any(feeding)
        ]

    def samples(self, step: int) -> Vector:
        """Return the keys of the samples of a step in ascending order."""
        return _sorted([key for rank_step in self.of_ranks(step) for key in rank_step.samples])

    def key_counts(self, steps: Iterable[int]) -> Counter[float]:
        """Return how often each sample is used in some steps, by its rounded key."""
        return Counter(round(key, KEY_DECIMALS) for step in steps for key in self.samples(step).tolist())

    def evaluated(self, steps: int) -> Vector:
        """Return the keys of all samples that were evaluated in the first `steps` steps."""
        keys = [key for trace in self.traces for step in trace.steps[:steps] for key in step.evaluated]
        if all(len(trace.steps) == steps for trace in self.traces):
            keys += [key for trace in self.traces for key in trace.facts.evaluated]
        return _sorted(keys)

    def combined(self) -> Sequence[Sequence[float]]:
        """Return the numbers that rank 0 has combined with other ranks in each evaluation."""
        first = self.traces[0]
        return [
            numbers for numbers in (*(step.combined for step in first.steps), first.facts.combined) if numbers
        ]

    def evaluates_all(self, reference: "RunRecord", rank: int) -> bool:
        """Return whether a rank evaluates by itself all samples that one worker evaluates."""
        here, usual = (trace.evaluations() for trace in (self.traces[rank], reference.traces[0]))
        pairs = zip(here, usual, strict=False)
        return bool(here) and all(same_samples(np.sort(keys), np.sort(expected)) for keys, expected in pairs)

    def communicates_in_evaluation(self) -> bool:
        """Return whether rank 0 has combined numbers with other ranks, or gathered any, in an evaluation."""
        first = self.traces[0]
        return any((*(step.gathered for step in first.steps), first.facts.gathered, *self.combined()))

    def losses(self, step: int, total_of: Callable[..., Any] = np.mean) -> Sequence[float]:
        """Return candidates for the global loss: the sample-weighted mean, means, the sum; NaN if unknown.

        Ranks without a loss do not count: a pipeline computes it on its last rank only. `total_of` computes a
        rank's loss from those of its backwards.
        """
        ranks = [rank_step for rank_step in self.of_ranks(step) if rank_step.losses]
        if not ranks:
            return [np.nan]
        means = np.array([total_of(rank_step.losses) for rank_step in ranks])
        weights = np.array([len(rank_step.samples) for rank_step in ranks], dtype=float)
        mean, total = float(means.mean()), float(means.sum())
        weighted = float(np.sum(means * weights) / weights.sum()) if weights.sum() else mean
        return weighted, mean, total, total / len(self.traces)

    def has_loss(self, step: int) -> bool:
        """Return whether the loss of a step is known."""
        return any(rank_step.losses for rank_step in self.of_ranks(step))

    def gradient(self, step: int) -> Vector:
        """Return the sketch of rank 0's gradient before a step."""
        return np.array(self.at(step).gradient)

    def update(self, step: int) -> Vector:
        """Return the sketch of the update of the parameters in a step."""
        made = self.at(step)
        return np.array(made.after, np.float64) - np.array(made.before, np.float64)

    def parameters(self, step: int) -> Vector:
        """Return the sketch of the parameters after a step."""
        return np.array(self.at(step).after)

    def shared_between_ranks(self, steps: int) -> float:
        """Return the fraction of rank 0's samples in the first steps that other ranks also got."""
        if len(self.traces) == 1:
            return 0.0
        first, *further_ranks = [
            Counter(round(key, KEY_DECIMALS) for step in trace.steps[:steps] for key in step.samples)
            for trace in self.traces
        ]
        elsewhere = set().union(*further_ranks)
        return sum(n for key, n in first.items() if key in elsewhere) / max(1, first.total())

    def first_epoch(self) -> int:
        """Return the number of steps before the second pass over a loader, or before any sample repeats.

        Each optimizer may use a sample once.
        """
        known: defaultdict[int, set[float]] = defaultdict(set)
        for step in range(self.steps):
            if self.at(step).passes:
                return step
            keys = rounded_keys(self.samples(step).tolist())
            of_optimizer = known[self.at(step).optimizer]
            if keys & of_optimizer:
                return step
            of_optimizer |= keys
        return self.steps

    def epochs(self) -> int:
        """Return how many steps use the average sample, rounded up."""
        of_steps = [rounded_keys(self.samples(step).tolist()) for step in range(self.steps)]
        passes = max((self.at(step).passes for step in range(self.steps)), default=0)
        return max(1 + passes, -(-sum(map(len, of_steps)) // max(1, len(set().union(*of_steps)))))


def _truncated(trace: Trace, step: int) -> Trace:
    if len(trace.steps) <= step:
        return trace
    printed = trace.steps[step - 1].printed if step else 0
    facts = replace(
        trace.facts, evaluated=[], combined=[], gathered=False, printed=trace.facts.printed[:printed]
    )
    return replace(trace, facts=facts, steps=trace.steps[:step], begun=step)


def _without_first(trace: Trace, step: int) -> Trace:
    start = trace.steps[step - 1].printed if step else 0
    steps = [
        replace(kept, index=index, printed=kept.printed - start)
        for index, kept in enumerate(trace.steps[step:])
    ]
    facts = replace(trace.facts, printed=trace.facts.printed[start:])
    return replace(trace, facts=facts, steps=steps, begun=max(0, trace.begun - step))


def same_samples(keys: Vector, usual: Vector) -> bool:
    """Return whether two sorted lists of sample keys are equal up to rounding."""
    if keys.shape != usual.shape:
        return False
    if not keys.size:
        return True
    difference = np.abs(keys - usual)
    exact = difference <= _SAME_KEY * np.maximum(np.abs(keys), np.abs(usual)).max()
    return bool(exact.all() or (difference <= _CLOSE_KEY * np.std(usual)).all())


@np.errstate(invalid="ignore", over="ignore")
def relative(vector: Vector, reference: Vector) -> float:
    """Return the distance of two vectors relative to the second; infinite if their shapes differ."""
    if vector.shape != reference.shape:
        return float("inf")
    size = float(np.linalg.norm(reference))
    distance = float(np.linalg.norm(vector - reference))
    if not np.isfinite(distance):
        return 0.0 if np.array_equal(vector, reference, equal_nan=True) else float("inf")
    return distance / size if size else (0.0 if not distance else float("inf"))


def differ(of_ranks: Iterable[Sequence[float]]) -> bool:
    """Return whether the vectors of several ranks differ."""
    first, *vectors = map(np.array, of_ranks)
    return any(relative(vector, first) > EQUAL for vector in vectors)


def _sorted(keys: Sequence[float]) -> Vector:
    return np.sort(np.array(keys, dtype=np.float64))


def merged(run: RunRecord) -> RunRecord:
    """Return a run with each batch of several ranks once, and with averaged steps."""
    if run.runs_once or run.size == 1:
        return run
    traces = [_own_batches(trace, run) for trace in run.traces]
    traces[0] = _with_output(traces)
    return _with_reduced_gradients(_with_averaged_parameters(replace(run, traces=traces)))


def _with_output(traces: Sequence[Trace]) -> Trace:
    """Return rank 0's trace with the output of the first rank that prints: a pipeline's last stage may."""
    first = traces[0]
    source = next((trace for trace in traces if trace.facts.printed.strip()), first)
    if source is first or len(source.steps) < len(first.steps):
        return first
    steps = [
        replace(step, printed=printing.printed)
        for step, printing in zip(first.steps, source.steps, strict=False)
    ]
    return replace(first, facts=replace(first.facts, printed=source.facts.printed), steps=steps)


def _own_batches(trace: Trace, run: RunRecord) -> Trace:
    """Return a trace without the samples and losses that the first rank of the same batch has too."""
    ranks = trace.facts.same_batch
    if not ranks or ranks[0] == trace.facts.rank:
        return trace
    first = run.traces[ranks[0]]
    steps = [
        replace(
            step, samples=[], losses=step.losses if step.losses != first_step.losses else [], evaluated=[]
        )
        if (step.samples, step.evaluated) == (first_step.samples, first_step.evaluated)
        else step
        for step, first_step in zip(trace.steps, first.steps, strict=False)
    ]
    same = trace.facts.evaluated == first.facts.evaluated
    facts = replace(trace.facts, evaluated=[]) if same else trace.facts
    return replace(trace, facts=facts, steps=[*steps, *trace.steps[len(steps) :]])


def _with_averaged_parameters(run: RunRecord) -> RunRecord:
    """Return a run in which steps with other gradients on each rank have the mean, if the ranks keep that."""
    changed = {step: mean for step in range(run.steps) if (mean := _mean_of_step(run, step)) is not None}
    kept = [_keeps(run, step, mean["after"]) for step, mean in changed.items()]
    if not any(kept) or any(is_kept is False for is_kept in kept):
        return run
    return replace(_with_means(run, changed), averages_parameters=True)


def _with_reduced_gradients(run: RunRecord) -> RunRecord:
    """Return a run with mean gradients, if other gradients on each rank always lead to equal parameters."""
    differing = [step for step in range(run.steps) if _differs(run, step, "gradient")]
    differ_after = any(differ(rank_step.after for rank_step in run.of_ranks(step)) for step in differing)
    if differ_after or not any(run.at(step).before != run.at(step).after for step in differing):
        return run
    means = {step: _means(run, step) for step in differing}
    return replace(_with_means(run, means), reduces_in_step=True)


def _differs(run: RunRecord, step: int, name: str) -> bool:
    """Return whether a quantity of all parameters differs between ranks that have the same parameters."""
    vectors = [getattr(rank_step, name) for rank_step in run.of_ranks(step)]
    return len({len(vector) for vector in vectors}) == 1 and differ(vectors)


def _mean_of_step(run: RunRecord, step: int) -> dict[str, Vector] | None:
    """Return the means over the ranks in a step after which their parameters differ; None for other steps."""
    has_one_length = len({len(rank_step.gradient) for rank_step in run.of_ranks(step)}) == 1
    return _means(run, step) if has_one_length and _differs(run, step, "after") else None


def _means(run: RunRecord, step: int) -> dict[str, Vector]:
    """Return the means over the ranks of gradients before a step, and of parameters after it."""
    return {
        name: np.mean([getattr(rank_step, name) for rank_step in run.of_ranks(step)], axis=0)
        for name in ("gradient", "after")
    }


def _with_means(run: RunRecord, means: Mapping[int, dict[str, Vector]]) -> RunRecord:
    """Return a run with these means in the place of each rank's gradients and parameters, by step."""
    traces = [
        replace(trace, steps=[_with(step, means.get(k)) for k, step in enumerate(trace.steps)])
        for trace in run.traces
    ]
    return replace(run, traces=traces)


def _keeps(run: RunRecord, step: int, mean: Vector) -> bool | None:
    """Return whether all ranks begin the optimizer's next step with a mean; None if there is no such step."""
    number = run.at(step).optimizer
    later = (run.of_ranks(k) for k in range(step + 1, run.steps) if run.at(k).optimizer == number)
    following = next(later, None)
    if following is None:
        return None
    return all(relative(np.array(rank_step.before), mean) <= EQUAL for rank_step in following)


def _with(step: Step, mean: dict[str, Vector] | None) -> Step:
    if mean is None or step.joined:
        return step
    gradient, after = mean["gradient"].tolist(), mean["after"].tolist()
    return replace(step, gradient=gradient, after=after, gradient_norm=float("nan"))
