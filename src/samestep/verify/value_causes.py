"""Finds the causes of other values: learning rates, parameters, gradients and losses."""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from samestep.verify.compare import Comparison
from samestep.verify.run_record import EQUAL, differ, relative
from samestep.verify.verdict import Cause, Finding

_AVERAGED_PARAMETERS = (
    "The ranks average their parameters after the step, which is the step of the averaged gradient for plain "
    "SGD only: average the gradients before it."
)


def learning_rate(comparison: Comparison) -> Finding | None:
    """Find the first step with another learning rate than on one worker."""
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
            f"the learning rate is {size} times that of one worker.",
            step,
            advice="Use the same rate for the same global batch: gradients are averaged, not summed.",
        )
    for ahead in (0, size - 1):
        pairs = [(i, i * size + ahead) for i in range(len(here)) if i * size + ahead < len(usual)]
        if len(pairs) > 1 and all(_close(here[i], usual[k]) for i, k in pairs):
            return comparison.finding(
                "schedule-n-times",
                f"the learning rate of step {step} is that of step {step * size + ahead} on one worker: the "
                f"schedule steps {size} times per step.",
                step,
                advice="Step it once.",
            )
    return comparison.finding(
        "learning-rate",
        f"the learning rate of step {step} is {_rates(here[step])}, on one worker {_rates(usual[step])}.",
        step,
    )


def start(comparison: Comparison) -> Finding | None:
    """Find ranks that start with different parameters, of any optimizer."""
    first: dict[int, int] = {}
    for step in range(comparison.steps):
        first.setdefault(comparison.run.at(step).optimizer, step)
    found = _first_apart(comparison, "before", first.values())
    if found is None:
        return None
    return comparison.finding(
        "replicas-differ-at-start",
        "the ranks start with different parameters.",
        found,
        advice="Broadcast rank 0's (samestep.replicate, DistributedDataParallel), or draw them from one"
        " seed.",
    )


def averaging(comparison: Comparison) -> Finding | None:
    """Find the first step in which the gradients of the ranks differ."""
    step = _first_apart(comparison, "gradient", range(comparison.steps))
    if step is None:
        return None
    backwards = comparison.run.at(step).backwards
    if comparison.run.facts.wrapped and backwards > 1:
        return comparison.finding(
            "accumulation-not-averaged",
            f"the ranks' gradients differ in step {step}, which accumulates {backwards} backwards.",
            step,
            advice="Run the last one outside no_sync().",
        )
    return comparison.finding(
        "never-averaged",
        f"the ranks' gradients differ in step {step}: they are not averaged.",
        step,
        advice="Between backward and the optimizer's step, all-reduce each gradient and divide it by the "
        "number of ranks. DistributedDataParallel does so if it is called itself, not its .module; "
        "samestep.replicate does so too.",
    )


def divergence(comparison: Comparison) -> Finding | None:
    """Find the first step after which the ranks' parameters differ, though their gradients are equal."""
    step = _first_apart(comparison, "after", range(comparison.steps))
    if step is None:
        return None
    return comparison.finding(
        "replicas-diverge",
        f"the ranks' parameters differ after step {step}, though their gradients are equal: the optimizer "
        "does something else on each rank.",
        step,
        advice="Give all ranks the same learning rate, state and clipping.",
    )


def scale(comparison: Comparison) -> Finding | None:
    """Find a gradient that is a multiple of that of one worker."""
    if comparison.first is None or comparison.first.quantity not in ("gradient", "gradient norm", "loss"):
        return None
    step, size = comparison.first.step, comparison.size
    here, usual = comparison.run.gradient(step), comparison.reference.gradient(step)
    if here.shape != usual.shape or not usual.any():
        return None
    factor = float(here @ usual / (usual @ usual))
    if abs(factor - 1) < 1e-3 or not factor or relative(here / factor, usual) > 1e-3:
        return None
    factor, where = _before_clipping(comparison, step, factor)
    cause: Cause
    if abs(factor - size) < 1e-3 * size:
        cause, why, advice = "sum-not-mean", ": it is summed over the ranks", "Divide it by their number."
    elif abs(factor * size - 1) < 1e-3:
        cause, why = "divided-twice", ": it is averaged twice"
        advice = "Divide neither loss nor gradients by the number of workers: something else does already."
    else:
        cause, why = "gradient-scale", ""
        advice = "The mean of the ranks' gradients is their sum divided by the number of ranks."
    message = f"the gradient of step {step} is {factor:.4g} times that of one worker{where}{why}."
    return comparison.finding(cause, message, step, advice=advice)


def _before_clipping(comparison: Comparison, step: int, factor: float) -> tuple[float, str]:
    """Return the scale of a gradient before `clip_grad_norm_` has changed it, and words for that."""
    here, usual = comparison.run.at(step).unclipped, comparison.reference.at(step).unclipped
    if not here * usual or not np.isfinite(here * usual) or abs(here / usual - factor) < 1e-3 * factor:
        return factor, ""
    return here / usual, " before it is clipped"


def mean_of_means(comparison: Comparison) -> Finding | None:
    """Find the first step whose loss is weighted by rank instead of by sample."""
    first, run = comparison.first, comparison.run
    if first is None or first.quantity not in ("gradient", "gradient norm", "loss", "update"):
        return None
    counts = [run.counts(step) for step in range(first.step + 1)]
    *before, last = counts
    if any(len(set(one)) != 1 for one in before):
        return None
    if len(set(last)) == 1:
        return _mean_of_label_means(comparison, first.step)
    return comparison.finding(
        "mean-of-means",
        f"step {first.step} is the first with unequal numbers of samples per rank ({last}): the mean of the "
        "ranks' means is not the mean of the samples.",
        first.step,
        advice="Weight each rank's loss by its samples.",
    )


def _mean_of_label_means(comparison: Comparison, step: int) -> Finding | None:
    """Find ranks that have as many samples, but divide their losses by other numbers of labels or tokens."""
    of_ranks = [one.divisors for one in comparison.run.of_ranks(step)]
    if len({len(one) for one in of_ranks}) != 1:
        return None
    unequal = next((numbers for numbers in zip(*of_ranks, strict=True) if len(set(numbers)) > 1), None)
    if unequal is None:
        return None
    shown = ", ".join(f"{number:g}" for number in unequal)
    return comparison.finding(
        "mean-of-means",
        f"the ranks divide their losses of step {step} by unequal numbers of labels or elements ([{shown}]): "
        "the mean of these means is not the mean of all.",
        step,
        advice="Sum the losses of each rank, multiply by the number of ranks, and divide by the number of "
        "labels on all ranks (all-reduce it).",
    )


def buffers(comparison: Comparison) -> Finding | None:
    """Find ranks that start with different untrained tensors, if values differ from those of one worker."""
    if comparison.first is None:
        return None
    facts = [trace.facts for trace in comparison.run.traces]
    if _vectors_differ([one.frozen for one in facts]):
        what = "parameters of a model that is not trained, such as a teacher"
        advice = "Broadcast rank 0's, or load or draw them with one seed."
    elif _vectors_differ([one.buffers for one in facts]):
        what = "buffers or frozen parameters, the tensors of the model that are not trained"
        advice = "Broadcast rank 0's (model.buffers()) like the parameters, or draw them from one seed."
    else:
        return None
    return comparison.finding(
        "buffers-differ-at-start",
        f"the ranks start with different {what}.",
        comparison.first.step,
        advice=advice,
    )


def unknown(comparison: Comparison) -> Finding | None:
    """Find the first deviation, of whatever cause."""
    first = comparison.first
    if first is None or _is_loss_only(comparison):
        return None
    samples = "equal" if comparison.has_same_samples(first.step) else "unknown"
    averages = first.quantity in ("update", "parameters") and comparison.run.averages_parameters
    return comparison.finding(
        cast("Cause", first.quantity.replace(" ", "-")),
        f"the {first.quantity} of step {first.step} deviates by {first.value:.1e}, rounding explains "
        f"{first.allowed:.1e}; samples: {samples}.",
        first.step,
        advice=_AVERAGED_PARAMETERS if averages else "",
    )


def loss_only(comparison: Comparison) -> Finding | None:
    """Find a loss that differs though all gradients and parameters are the same."""
    if not _is_loss_only(comparison):
        return None
    return comparison.finding(
        "loss-only",
        "the loss that backward starts from differs, and all gradients and parameters are the same: it has "
        "another scale on several workers, or a part without a gradient.",
        comparison.first.step if comparison.first else None,
        kind="exception",
    )


def _is_loss_only(comparison: Comparison) -> bool:
    has_gradients = any(comparison.reference.at(step).gradient for step in range(comparison.steps))
    if comparison.run.runs_once or not has_gradients:
        return False
    return {one.quantity for one in comparison.deviations if not one.is_rounding} == {"loss"}


def _first_apart(comparison: Comparison, name: str, steps: Iterable[int]) -> int | None:
    """Return the first of some steps in which a quantity differs between the ranks."""
    of_ranks = comparison.run.of_ranks
    return next((step for step in steps if differ(getattr(one, name) for one in of_ranks(step))), None)


def _vectors_differ(of_ranks: Sequence[Sequence[float]]) -> bool:
    """Return whether the vectors of as many tensors differ between ranks."""
    first, *others = map(np.array, of_ranks)
    return any(one.shape == first.shape and relative(one, first) > EQUAL for one in others)


def _rates(rates: Sequence[float]) -> str:
    """Return the distinct learning rates as text."""
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates)) or "none"


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and bool(np.allclose(one, other, rtol=1e-9, atol=0))
