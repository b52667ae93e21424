"""Merges the records of ranks that do one work together, so that each sample and each update counts once.

Ranks of a tensor parallel group record the same batch: one of them counts. Ranks that average their
parameters after each step, in place of their gradients, make the step of the averaged gradient. The output is
that of the first rank that prints.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from samestep.verify.run_record import EQUAL, RunRecord, Vector, differ, relative
from samestep.verify.trace import Step, Trace


def merged(run: RunRecord) -> RunRecord:
    """Return a run with each batch of several ranks once, and with averaged steps."""
    if run.runs_once or run.size == 1:
        return run
    traces = [_own_batches(one, run) for one in run.traces]
    traces[0] = _with_output(traces)
    return _with_averaged_parameters(replace(run, traces=traces))


def _with_output(traces: Sequence[Trace]) -> Trace:
    """Return rank 0's trace with the output of the first rank that prints: a pipeline's last stage may."""
    first = traces[0]
    source = next((one for one in traces if one.facts.printed.strip()), first)
    if source is first or len(source.steps) < len(first.steps):
        return first
    steps = [replace(own, printed=one.printed) for own, one in zip(first.steps, source.steps, strict=False)]
    return replace(first, facts=replace(first.facts, printed=source.facts.printed), steps=steps)


def _own_batches(trace: Trace, run: RunRecord) -> Trace:
    """Return a trace without the samples and losses that the first rank of the same batch has too."""
    ranks = trace.facts.same_batch
    if not ranks or ranks[0] == trace.facts.rank:
        return trace
    first = run.traces[ranks[0]]
    steps = [
        replace(own, samples=[], losses=[], evaluated=[])
        if (own.samples, own.evaluated) == (other.samples, other.evaluated)
        else own
        for own, other in zip(trace.steps, first.steps, strict=False)
    ]
    same = trace.facts.evaluated == first.facts.evaluated
    facts = replace(trace.facts, evaluated=[]) if same else trace.facts
    return replace(trace, facts=facts, steps=[*steps, *trace.steps[len(steps) :]])


def _with_averaged_parameters(run: RunRecord) -> RunRecord:
    """Return a run in which steps with other gradients on each rank have the mean, if the ranks keep that."""
    changed = {step: mean for step in range(run.steps) if (mean := _mean_of_step(run, step)) is not None}
    kept = [_keeps(run, step, mean["after"]) for step, mean in changed.items()]
    if not any(kept) or any(one is False for one in kept):
        return run
    return replace(
        run,
        averages_parameters=True,
        traces=[
            replace(trace, steps=[_with(one, changed.get(k)) for k, one in enumerate(trace.steps)])
            for trace in run.traces
        ],
    )


def _mean_of_step(run: RunRecord, step: int) -> dict[str, Vector] | None:
    """Return the means over the ranks in a step after which their parameters differ; None for other steps."""
    ranks = run.of_ranks(step)
    lengths = {len(one.after) for one in ranks}
    if len(lengths) != 1 or not differ(one.after for one in ranks):
        return None
    if len({len(one.gradient) for one in ranks}) != 1:
        return None
    return {name: np.mean([getattr(one, name) for one in ranks], axis=0) for name in ("gradient", "after")}


def _keeps(run: RunRecord, step: int, mean: Vector) -> bool | None:
    """Return whether all ranks begin the optimizer's next step with a mean; None if there is no such step."""
    number = run.at(step).optimizer
    later = (run.of_ranks(k) for k in range(step + 1, run.steps) if run.at(k).optimizer == number)
    following = next(later, None)
    if following is None:
        return None
    return all(relative(np.array(one.before), mean) <= EQUAL for one in following)


def _with(step: Step, mean: dict[str, Vector] | None) -> Step:
    if mean is None or step.joined:
        return step
    gradient, after = mean["gradient"].tolist(), mean["after"].tolist()
    return replace(step, gradient=gradient, after=after, gradient_norm=float("nan"))
