"""Why a run differs from the reference: each cause is a test of what was seen.

A later difference follows from an earlier one, so that causes are looked for in the order in which a step
goes: workers, samples, learning rate, parameters, gradient, loss; and only what differs first is named.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from samestep.study.case import Case
from samestep.study.compare import printed_deviations
from samestep.study.seen import relative, same_samples
from samestep.study.verdict import Finding

REPEATED_EPOCHS = "a DistributedSampler shuffles each epoch as the one before: call its set_epoch(epoch)."
_MANY = 0.5
"""Part of a rank's samples that others may have too by chance; more are no chance."""
_EQUAL = 1e-6
"""Relative; what replicas may differ by before it is no rounding of a collective."""


Test: TypeAlias = Callable[[Case], Finding | None]


def causes(case: Case) -> list[Finding]:
    """Return what differs: the first cause, and what is a fault of its own beside it."""
    tests: Sequence[Test] = (
        _steps_differ,
        _crash,
        _silent_copies,
        _no_set_epoch,
        _samples,
        _same_work,
        _learning_rate,
        _start,
        _averaging,
        _scale,
        _mean_of_means,
        _unknown,
    )
    primary = next((found for test in tests if (found := test(case)) is not None), None)
    if primary is not None:
        return [primary]
    beside = [one for test in (_padded_evaluation, _fewer_steps) if (one := test(case)) is not None]
    metric = None if beside else _local_metric(case)
    return beside if metric is None else [metric]


def _steps_differ(case: Case) -> Finding | None:
    traces = case.seen.traces
    failure = case.seen.failure
    hangs = failure is not None and failure.error == "OutOfStep"
    if case.seen.is_replicated or not (hangs or any(trace.facts.ended == "end" for trace in traces)):
        return None
    begun = [trace.begun for trace in traces]
    most, least = begun.index(max(begun)), begun.index(min(begun))
    if begun[most] == begun[least] or not (hangs or traces[least].facts.ended == "end"):
        return None
    return case.finding(
        "steps-differ",
        f"rank {most} begins a step more than rank {least}, whose loop ends after {begun[least]}: "
        "the number of batches depends on the rank. Give each rank as many (samestep.shard), or join() the "
        "model.",
        begun[least],
    )


def _crash(case: Case) -> Finding | None:
    failed = [
        trace.facts for trace in case.seen.traces if trace.facts.ended not in ("steps", "end", "killed")
    ]
    if not failed:
        return _death(case)
    first = min(failed, key=lambda facts: len(case.seen.traces[facts.rank].steps))
    if first.ended in ("UsageError", "OutOfStep"):
        return case.finding("refused", first.message, case.seen.steps)
    message = " ".join(first.message.split())
    return case.finding("crash", f"rank {first.rank} failed: {first.ended}: {message[:300]}", case.seen.steps)


def _death(case: Case) -> Finding | None:
    """Return how a run ended of which no rank could say so itself."""
    failure = case.seen.failure
    if failure is None:
        return None
    if failure.error == "OutOfStep":
        return case.finding("hang", failure.message, case.seen.steps)
    how = failure.message or f"with exit code {failure.exit_code}"
    return case.finding("crash", f"rank {failure.rank} died: {how}.", case.seen.steps)


def _silent_copies(case: Case) -> Finding | None:
    if (
        case.seen.is_replicated
        or case.size == 1
        or any(trace.facts.group_size > 1 for trace in case.seen.traces)
    ):
        return None
    return case.finding(
        "silent-copies",
        f"{case.size} workers ran, and none ever met another: {case.size} copies of one training, side by "
        "side. Have the script call init_process_group, or run the serial script with samestep run.",
    )


def _no_set_epoch(case: Case) -> Finding | None:
    if not case.seen.facts.repeated_epochs or case.reference.facts.repeated_epochs:
        return None
    return case.finding("no-set-epoch", REPEATED_EPOCHS)


def _samples(case: Case) -> Finding | None:
    step = case.other_samples
    if step is None:
        return None
    shared = case.seen.shared_between_ranks(max(1, min(case.seen.first_epoch(), case.steps)))
    usual, found = len(case.reference.samples(step)), len(case.seen.samples(step))
    if shared >= _MANY or (shared > 0 and found == usual):
        cause = "overlapping-shards"
        message = (
            f"{shared:.0%} of rank 0's samples are used by other ranks too, in the same epoch. Give each "
            "rank a shard of its own (samestep.shard, DistributedSampler), drawn from one seed."
        )
    elif found == usual * case.size:
        cause = "batch-times-n"
        message = (
            f"step {step} uses {found} samples, {case.size} times the {usual} of one worker: the loader's "
            f"batch size is each worker's. Divide it by the number of workers."
        )
    elif found > usual:
        cause = "padded-samples"
        message = (
            f"step {step} uses {found} samples, one worker {usual}: the sampler pads with repeats. "
            "Use samestep.UnpaddedSampler."
        )
    elif found < usual:
        cause = "samples-left-out"
        message = (
            f"step {step} uses {found} samples, one worker {usual}: the rest of the data that does not "
            "divide is left out. Use samestep.UnpaddedSampler."
        )
    else:
        cause, message = _as_many_others(case, step)
    return case.finding(cause, message, step)


def _as_many_others(case: Case, step: int) -> tuple[str, str]:
    """Return why a step uses as many samples as on one worker, but others."""
    here, usual = (
        np.unique(np.concatenate([one.samples(k) for k in range(one.steps)]).round(9))
        for one in (case.seen, case.reference)
    )
    if case.reference.first_epoch() < case.reference.steps and len(here) < len(usual):
        left_out = len(np.setdiff1d(usual, here))
        return "samples-left-out", (
            f"{left_out} of {len(usual)} samples are used on one worker and never here, and the order is "
            "another. Use samestep.UnpaddedSampler."
        )
    if np.array_equal(here, usual):
        return "other-order", (
            f"step {step} uses other samples than on one worker, though all steps together use the same: "
            "the order is drawn otherwise. Draw the order of the whole data as one worker does, and cut its "
            "batches (samestep.shard)."
        )
    return "other-samples", f"step {step} uses other samples than on one worker."


def _same_work(case: Case) -> Finding | None:
    """Return whether each rank uses all samples of each step, which changes nothing but the time it takes."""
    if case.seen.is_replicated or case.size == 1 or not case.steps:
        return None
    for step in range(case.steps):
        first, *others = [np.sort(one.samples) for one in case.seen.of_ranks(step)]
        usual = case.reference.samples(step)
        if not first.size or any(not same_samples(one, first) for one in (*others, usual)):
            return None
    if case.steps > 1 and same_samples(case.seen.samples(0), case.seen.samples(1)):
        return None  # what does not change from step to step is no data
    return case.finding(
        "overlapping-shards",
        "each rank uses all samples of every step: the ranks make copies of one training, in step. Give each "
        "rank a shard of its own (samestep.shard, DistributedSampler).",
        0,
    )


def _learning_rate(case: Case) -> Finding | None:
    first = next(
        (one for one in case.deviations if one.quantity == "learning rate" and not one.is_rounding), None
    )
    if first is None:
        return None
    here, usual = (
        [seen.at(step).learning_rates for step in range(seen.steps)] for seen in (case.seen, case.reference)
    )
    size, step = case.size, first.step
    if all(_close(a, [size * b for b in usual[i]]) for i, a in enumerate(here[: len(usual)])):
        return case.finding(
            "lr-times-n",
            f"the learning rate is {size} times that of one worker, for the same batch: gradients are "
            "averaged, not summed. Leave it as it is.",
            step,
        )
    for ahead in (0, size - 1):
        pairs = [(i, i * size + ahead) for i in range(len(here)) if i * size + ahead < len(usual)]
        if len(pairs) > 1 and all(_close(here[i], usual[k]) for i, k in pairs):
            return case.finding(
                "schedule-n-times",
                f"the learning rate of step {step} is that of step {step * size + ahead} on one worker: the "
                f"schedule steps {size} times per step. Step it once.",
                step,
            )
    return case.finding(
        "learning-rate",
        f"the learning rate of step {step} is {_told(here[step])}, on one worker {_told(usual[step])}.",
        step,
    )


def _start(case: Case) -> Finding | None:
    if not case.steps or not _ranks_differ(case, 0, "before"):
        return None
    return case.finding(
        "replicas-differ-at-start",
        "the ranks begin with other parameters: broadcast rank 0's (samestep.replicate, "
        "DistributedDataParallel), or draw them from one seed.",
        0,
    )


def _averaging(case: Case) -> Finding | None:
    step = next((one for one in range(case.steps) if _ranks_differ(case, one, "gradient")), None)
    if step is None:
        return None
    several = case.seen.at(step).backwards > 1
    if case.seen.facts.wrapped and several:
        return case.finding(
            "accumulation-not-averaged",
            f"the ranks' gradients differ in step {step}, which accumulates "
            f"{case.seen.at(step).backwards} backwards: the last one must not be within no_sync().",
            step,
        )
    return case.finding(
        "never-averaged",
        f"the ranks' gradients differ in step {step}: nothing averages them. Call the "
        "DistributedDataParallel model itself, not its .module, or use samestep.replicate.",
        step,
    )


def _scale(case: Case) -> Finding | None:
    if case.first is None or case.first.quantity not in ("gradient", "gradient norm", "loss"):
        return None
    step = case.first.step
    here, usual = case.seen.gradient(step), case.reference.gradient(step)
    if here.shape != usual.shape or not usual.any():
        return None
    factor = float(here @ usual / (usual @ usual))
    if abs(factor - 1) < 1e-3 or not factor or relative(here / factor, usual) > 1e-3:
        return None
    size = case.size
    if abs(factor - size) < 1e-3 * size:
        cause, why = "sum-not-mean", "summed over the ranks and not averaged: divide by their number"
    elif abs(factor * size - 1) < 1e-3:
        cause, why = "divided-twice", "averaged twice: leave the loss as it is where gradients are averaged"
    else:
        cause, why = "gradient-scale", "scaled"
    return case.finding(
        cause, f"the gradient of step {step} is {factor:.4g} times that of one worker: {why}.", step
    )


def _mean_of_means(case: Case) -> Finding | None:
    if case.first is None or case.first.quantity not in ("gradient", "gradient norm", "loss", "update"):
        return None
    step = case.first.step
    counts = [len(one.samples) for one in case.seen.of_ranks(step)]
    even_before = all(
        len({len(one.samples) for one in case.seen.of_ranks(before)}) == 1 for before in range(step)
    )
    if len(set(counts)) == 1 or not even_before:
        return None
    return case.finding(
        "mean-of-means",
        f"step {step} is the first in which ranks have unequal numbers of samples ({counts}), and the mean "
        "of their means is not the mean of the samples: weight each rank's loss by its samples.",
        step,
    )


def _unknown(case: Case) -> Finding | None:
    if case.first is None:
        return None
    one = case.first
    samples = (
        "its samples are the same"
        if case.has_same_samples(one.step)
        else "its samples are not known to be the same"
    )
    return case.finding(
        one.quantity.replace(" ", "-"),
        f"the {one.quantity} of step {one.step} is off by {one.value:.1e}, where rounding makes up to "
        f"{one.allowed:.1e}; {samples}.",
        one.step,
    )


def _padded_evaluation(case: Case) -> Finding | None:
    here, usual = case.seen.evaluated(case.steps), case.reference.evaluated(case.steps)
    each = [
        sum(len(step.evaluated) for step in trace.steps) + len(trace.facts.evaluated)
        for trace in case.seen.traces
    ]
    if case.seen.is_replicated or len(here) <= len(usual) or max(each) >= len(usual):
        return None
    return case.finding(
        "padded-evaluation",
        f"evaluation counts {len(here)} samples, on one worker {len(usual)}: the sampler pads with repeats, "
        "which count twice. Use samestep.UnpaddedSampler for evaluation.",
    )


def _fewer_steps(case: Case) -> Finding | None:
    if case.seen.steps == case.reference.steps:
        return None
    return case.finding(
        "number-of-steps",
        f"{case.seen.steps} steps were made, on one worker {case.reference.steps}.",
        case.steps,
    )


def _local_metric(case: Case) -> Finding | None:
    found = printed_deviations(case.reference, case.seen, case.control)
    if not found:
        return None
    # A number that is nobody's loss is the graver one.
    worst = max(found, key=lambda one: (not one.is_own_loss, one.value))
    what = f"it prints {worst.line.strip()!r}, which is off by {worst.value:.1e}"
    if worst.is_own_loss:
        cause, why = "local-print", "the loss of rank 0's share"
    else:
        cause = "printed" if case.seen.is_replicated else "local-metric"
        why = "a number of rank 0's share printed as if it were everybody's. Sum it over the ranks"
    return Finding(
        cause=cause,
        message=f"{what}, though the training is the same: {why}.",
        workers=case.size,
        max_relative_deviation=worst.value,
        is_exception=worst.is_own_loss,
    )


def _ranks_differ(case: Case, step: int, what: str) -> bool:
    first, *others = [np.array(getattr(one, what)) for one in case.seen.of_ranks(step)]
    return any(relative(one, first) > _EQUAL for one in others)


def _told(rates: Sequence[float]) -> str:
    """Return different learning rates in words."""
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates)) or "none"


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and bool(np.allclose(one, other, rtol=1e-9, atol=0))
