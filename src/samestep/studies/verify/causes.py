"""Names the cause of a difference between two runs; each cause is one test of a comparison.

A later difference follows from an earlier one, so the tests run in the order in which a step proceeds:
workers, samples, learning rate, parameters, gradient, loss. Only the first difference is named.

A new cause needs a test here, its code in `verdict.Cause`, a row in ``docs/guide/verify.md``, and a script
with that fault in ``tests/gallery_ddp``. ``CONTRIBUTING.md`` has an example.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import numpy as np

from samestep.launch.local.failure import follows_from_another
from samestep.studies.verify.case import Comparison
from samestep.studies.verify.compare import printed_deviations
from samestep.studies.verify.run_record import relative, same_samples
from samestep.studies.verify.verdict import Cause, Finding

REPEATED_EPOCHS = "a DistributedSampler shuffles every epoch in the same order: call its set_epoch(epoch)."
_MANY = 0.5
"""Fraction of a rank's samples that other ranks also use; a larger one is not chance."""
_EQUAL = 1e-6
"""Largest relative difference between ranks that the rounding of a collective explains."""


Test: TypeAlias = Callable[[Comparison], Finding | None]


def causes(comparison: Comparison) -> list[Finding]:
    """Return the first cause of a difference, or the faults that do not change the training."""
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
    primary = next((found for test in tests if (found := test(comparison)) is not None), None)
    if primary is not None:
        return [primary]
    beside = [one for test in (_padded_evaluation, _fewer_steps) if (one := test(comparison)) is not None]
    metric = None if beside else _local_metric(comparison)
    return beside if metric is None else [metric]


def _steps_differ(comparison: Comparison) -> Finding | None:
    run = comparison.run
    traces = run.traces
    hangs = run.failure is not None and run.failure.error == "OutOfStep"
    if run.is_replicated or not (hangs or any(trace.facts.ended == "end" for trace in traces)):
        return None
    begun = [trace.begun for trace in traces]
    most, least = begun.index(max(begun)), begun.index(min(begun))
    if begun[most] == begun[least] or not (hangs or traces[least].facts.ended == "end"):
        return None
    return comparison.finding(
        "steps-differ",
        f"the loop of rank {least} ends after {begun[least]} steps, rank {most} begins another: the number "
        "of batches depends on the rank. Give every rank as many (samestep.shard), or join() the model.",
        begun[least],
    )


def _crash(comparison: Comparison) -> Finding | None:
    run = comparison.run
    failed = [trace.facts for trace in run.traces if trace.facts.ended not in ("steps", "end", "killed")]
    if not failed:
        return _death(comparison)
    own = [facts for facts in failed if not follows_from_another(facts.ended, facts.message)]
    reported = {facts.rank for facts in failed}
    if not own and run.failure is not None and run.failure.rank not in reported:
        return _death(comparison)
    first = min(own or failed, key=lambda facts: len(run.traces[facts.rank].steps))
    if first.ended in ("UsageError", "OutOfStep"):
        return comparison.finding("refused", first.message, run.steps)
    message = " ".join(first.message.split())[:300]
    return comparison.finding("crash", f"rank {first.rank} failed: {first.ended}: {message}", run.steps)


def _death(comparison: Comparison) -> Finding | None:
    """Return the failure of a run in which no rank reported an error itself."""
    failure, steps = comparison.run.failure, comparison.run.steps
    if failure is None:
        return None
    if failure.error == "OutOfStep":
        return comparison.finding("hang", failure.message, steps)
    how = failure.message or f"with exit code {failure.exit_code}"
    return comparison.finding("crash", f"rank {failure.rank} died: {how}.", steps)


def _silent_copies(comparison: Comparison) -> Finding | None:
    run, size = comparison.run, comparison.size
    if run.is_replicated or size == 1 or any(trace.facts.group_size > 1 for trace in run.traces):
        return None
    return comparison.finding(
        "silent-copies",
        f"{size} workers ran without a common process group: {size} separate trainings. Call "
        "init_process_group in the script, or run the serial script with samestep run.",
    )


def _no_set_epoch(comparison: Comparison) -> Finding | None:
    if not comparison.run.facts.repeated_epochs or comparison.reference.facts.repeated_epochs:
        return None
    return comparison.finding("no-set-epoch", REPEATED_EPOCHS)


def _samples(comparison: Comparison) -> Finding | None:
    step, run, size = comparison.other_samples, comparison.run, comparison.size
    if step is None:
        return None
    shared = run.shared_between_ranks(max(1, min(run.first_epoch(), comparison.steps)))
    usual, found = len(comparison.reference.samples(step)), len(run.samples(step))
    counts = f"step {step} uses {found} samples, one worker {usual}"
    cause: Cause
    if shared >= _MANY or (shared > 0 and found == usual):
        cause = "overlapping-shards"
        message = (
            f"other ranks also use {shared:.0%} of rank 0's samples in the same epoch. Give each rank its "
            "own shard (samestep.shard, DistributedSampler), drawn from one seed."
        )
    elif found == usual * size:
        cause = "batch-times-n"
        message = (
            f"{counts}: {size} times as many, since the loader's batch size is per worker. Divide it by the "
            "number of workers."
        )
    elif found > usual:
        cause = "padded-samples"
        message = f"{counts}: the sampler pads with repeats. Use samestep.UnpaddedSampler."
    elif found < usual:
        cause = "samples-left-out"
        message = f"{counts}: the remainder of the data is dropped. Use samestep.UnpaddedSampler."
    else:
        cause, message = _as_many_others(comparison, step)
    return comparison.finding(cause, message, step)


def _as_many_others(comparison: Comparison, step: int) -> tuple[Cause, str]:
    """Return why a step uses as many samples as on one worker, but different ones."""
    here, usual = (
        np.unique(np.concatenate([one.samples(k) for k in range(one.steps)]).round(9))
        for one in (comparison.run, comparison.reference)
    )
    if comparison.reference.first_epoch() < comparison.reference.steps and len(here) < len(usual):
        left_out = len(np.setdiff1d(usual, here))
        return "samples-left-out", (
            f"{left_out} of the {len(usual)} samples of one worker are never used, and the order differs. "
            "Use samestep.UnpaddedSampler."
        )
    if np.array_equal(here, usual):
        return "other-order", (
            f"step {step} uses other samples than on one worker, though all steps together use the same. "
            "Draw the order of the whole data set as one worker does, and shard its batches (samestep.shard)."
        )
    return "other-samples", f"step {step} uses other samples than on one worker."


def _same_work(comparison: Comparison) -> Finding | None:
    """Find ranks that all use every sample of each step: the result is right, the work is repeated."""
    run = comparison.run
    if run.is_replicated or comparison.size == 1 or not comparison.steps:
        return None
    for step in range(comparison.steps):
        first, *others = [np.sort(one.samples) for one in run.of_ranks(step)]
        usual = comparison.reference.samples(step)
        if not first.size or any(not same_samples(one, first) for one in (*others, usual)):
            return None
    if comparison.steps > 1 and same_samples(run.samples(0), run.samples(1)):
        return None  # data that does not change from step to step are not samples
    return comparison.finding(
        "overlapping-shards",
        "every rank uses all samples of every step, so all ranks compute the same training. Give each rank "
        "its own shard (samestep.shard, DistributedSampler).",
        0,
    )


def _learning_rate(comparison: Comparison) -> Finding | None:
    first = comparison.first_of("learning rate")
    if first is None:
        return None
    here, usual = (
        [run.at(step).learning_rates for step in range(run.steps)]
        for run in (comparison.run, comparison.reference)
    )
    size, step = comparison.size, first.step
    if all(_close(a, [size * b for b in usual[i]]) for i, a in enumerate(here[: len(usual)])):
        return comparison.finding(
            "lr-times-n",
            f"the learning rate is {size} times that of one worker for the same batch. Use the same rate: "
            "gradients are averaged, not summed.",
            step,
        )
    for ahead in (0, size - 1):
        pairs = [(i, i * size + ahead) for i in range(len(here)) if i * size + ahead < len(usual)]
        if len(pairs) > 1 and all(_close(here[i], usual[k]) for i, k in pairs):
            return comparison.finding(
                "schedule-n-times",
                f"the learning rate of step {step} is that of step {step * size + ahead} on one worker: the "
                f"schedule steps {size} times per step. Step it once.",
                step,
            )
    return comparison.finding(
        "learning-rate",
        f"the learning rate of step {step} is {_rates(here[step])}, on one worker {_rates(usual[step])}.",
        step,
    )


def _start(comparison: Comparison) -> Finding | None:
    if not comparison.steps or not _ranks_differ(comparison, 0, "before"):
        return None
    return comparison.finding(
        "replicas-differ-at-start",
        "the ranks start with different parameters. Broadcast rank 0's (samestep.replicate, "
        "DistributedDataParallel), or draw them from one seed.",
        0,
    )


def _averaging(comparison: Comparison) -> Finding | None:
    step = next((one for one in range(comparison.steps) if _ranks_differ(comparison, one, "gradient")), None)
    if step is None:
        return None
    backwards = comparison.run.at(step).backwards
    if comparison.run.facts.wrapped and backwards > 1:
        return comparison.finding(
            "accumulation-not-averaged",
            f"the ranks' gradients differ in step {step}, which accumulates {backwards} backwards. Run the "
            "last one outside no_sync().",
            step,
        )
    return comparison.finding(
        "never-averaged",
        f"the ranks' gradients differ in step {step}: they are not averaged. Call the "
        "DistributedDataParallel model itself, not its .module, or use samestep.replicate.",
        step,
    )


def _scale(comparison: Comparison) -> Finding | None:
    if comparison.first is None or comparison.first.quantity not in ("gradient", "gradient norm", "loss"):
        return None
    step, size = comparison.first.step, comparison.size
    here, usual = comparison.run.gradient(step), comparison.reference.gradient(step)
    if here.shape != usual.shape or not usual.any():
        return None
    factor = float(here @ usual / (usual @ usual))
    if abs(factor - 1) < 1e-3 or not factor or relative(here / factor, usual) > 1e-3:
        return None
    cause: Cause
    if abs(factor - size) < 1e-3 * size:
        cause, why = "sum-not-mean", ": it is summed over the ranks. Divide it by their number"
    elif abs(factor * size - 1) < 1e-3:
        cause, why = (
            "divided-twice",
            ": it is averaged twice. Do not divide the loss by the number of workers",
        )
    else:
        cause, why = "gradient-scale", ""
    return comparison.finding(
        cause, f"the gradient of step {step} is {factor:.4g} times that of one worker{why}.", step
    )


def _mean_of_means(comparison: Comparison) -> Finding | None:
    first, run = comparison.first, comparison.run
    if first is None or first.quantity not in ("gradient", "gradient norm", "loss", "update"):
        return None
    counts = [[len(one.samples) for one in run.of_ranks(step)] for step in range(first.step + 1)]
    *before, last = counts
    if len(set(last)) == 1 or any(len(set(one)) != 1 for one in before):
        return None
    return comparison.finding(
        "mean-of-means",
        f"step {first.step} is the first with unequal numbers of samples per rank ({last}): the mean of the "
        "ranks' means is not the mean of the samples. Weight each rank's loss by its samples.",
        first.step,
    )


def _unknown(comparison: Comparison) -> Finding | None:
    first = comparison.first
    if first is None:
        return None
    samples = "equal" if comparison.has_same_samples(first.step) else "unknown"
    return comparison.finding(
        cast("Cause", first.quantity.replace(" ", "-")),
        f"the {first.quantity} of step {first.step} deviates by {first.value:.1e}, rounding explains "
        f"{first.allowed:.1e}; samples: {samples}.",
        first.step,
    )


def _padded_evaluation(comparison: Comparison) -> Finding | None:
    run, steps = comparison.run, comparison.steps
    here, usual = run.evaluated(steps), comparison.reference.evaluated(steps)
    each = [
        sum(len(step.evaluated) for step in trace.steps) + len(trace.facts.evaluated) for trace in run.traces
    ]
    if run.is_replicated or len(here) <= len(usual) or max(each) >= len(usual):
        return None
    return comparison.finding(
        "padded-evaluation",
        f"evaluation counts {len(here)} samples, on one worker {len(usual)}: the sampler pads with repeats. "
        "Use samestep.UnpaddedSampler for evaluation.",
    )


def _fewer_steps(comparison: Comparison) -> Finding | None:
    here, usual = comparison.run.steps, comparison.reference.steps
    if here == usual:
        return None
    return comparison.finding(
        "number-of-steps", f"the run has {here} steps, on one worker {usual}.", comparison.steps
    )


def _local_metric(comparison: Comparison) -> Finding | None:
    found = printed_deviations(comparison.reference, comparison.run, comparison.control)
    if not found:
        return None
    # A number that is not the loss of rank 0's share is the graver fault.
    worst = max(found, key=lambda one: (not one.is_own_loss, one.value))
    cause: Cause
    if worst.is_own_loss:
        cause, why = "local-print", "it is the loss of rank 0's share"
    else:
        cause = "printed" if comparison.run.is_replicated else "local-metric"
        why = "rank 0 prints it of its own share. Sum it over the ranks"
    return Finding(
        cause=cause,
        message=f"the training is the same, but a number in {worst.line.strip()!r} deviates by "
        f"{worst.value:.1e}: {why}.",
        workers=comparison.size,
        max_relative_deviation=worst.value,
        is_exception=worst.is_own_loss,
    )


def _ranks_differ(comparison: Comparison, step: int, name: str) -> bool:
    first, *others = [np.array(getattr(one, name)) for one in comparison.run.of_ranks(step)]
    return any(relative(one, first) > _EQUAL for one in others)


def _rates(rates: Sequence[float]) -> str:
    """Return the distinct learning rates as text."""
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates)) or "none"


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and bool(np.allclose(one, other, rtol=1e-9, atol=0))
