"""Finds the causes of other samples: those of a step, and those of an evaluation."""

from collections.abc import Sequence

import numpy as np

from samestep.base.units import counted
from samestep.verify.compare import Comparison
from samestep.verify.printed_lines import deviating_numbers, of_progress
from samestep.verify.run_record import RunRecord, same_samples
from samestep.verify.tensor_summary import KEY_DECIMALS, rounded_keys
from samestep.verify.verdict import Cause, Finding

REPEATED_EPOCHS = "a DistributedSampler shuffles every epoch in the same order: call its set_epoch(epoch)."
_NAMED = 3  # folders that a message names
_MANY = 0.5  # fraction of a rank's samples that other ranks also use; a larger one is not chance


def no_set_epoch(comparison: Comparison) -> Finding | None:
    """Find epochs that a DistributedSampler shuffles alike, unlike on one worker."""
    if not comparison.run.facts.repeated_epochs or comparison.reference.facts.repeated_epochs:
        return None
    return comparison.finding("no-set-epoch", REPEATED_EPOCHS)


def samples(comparison: Comparison) -> Finding | None:
    """Find the first step that trains on other samples than on one worker."""
    step, run, size = comparison.other_samples, comparison.run, comparison.size
    if step is None:
        return None
    shared = run.shared_between_ranks(max(1, min(run.first_epoch(), comparison.steps)))
    usual, count = len(comparison.reference.samples(step)), len(run.samples(step))
    counts = f"step {step} uses {counted(count, 'sample')}, {comparison.where} {usual}"
    cause: Cause
    advice = "Use samestep.UnpaddedSampler."
    if shared >= _MANY or (shared > 0 and count == usual):
        cause = "overlapping-shards"
        message = f"other ranks also use {shared:.0%} of rank 0's samples in the same epoch."
        advice = "Give each rank its own shard (samestep.shard, DistributedSampler), drawn from one seed."
    elif (where := _skipped(comparison, step)) is not None:
        cause = "skipped-step"
        message = f"{counts}: a step before it is skipped {where}, and only there."
        advice = "Decide on all ranks alike, and from the whole batch, whether a step is skipped."
    elif count == usual * size and size > 1:
        cause = "batch-times-n"
        message = f"{counts}: {size} times as many, since the loader's batch size is per worker."
        advice = "Divide it by the number of workers."
    elif count > usual:
        cause, message = "padded-samples", f"{counts}: the sampler pads with repeats."
    elif count < usual:
        cause, message = "samples-left-out", f"{counts}: the remainder of the data is dropped."
    else:
        cause, message, advice = _as_many_others(comparison, step)
    return comparison.finding(cause, message, step, advice=advice)


def _skipped(comparison: Comparison, step: int) -> str | None:
    """Return where a step is skipped, so that its samples count towards the next one; None if none is."""
    reference, run = comparison.reference, comparison.run
    if not step or not comparison.has_same_samples(step - 1):  # a batch of another size has two in every step
        return None
    if _has_two_steps(reference, run, step):
        return comparison.where
    return "on several" if _has_two_steps(run, reference, step) else None


def _has_two_steps(skipping: RunRecord, making: RunRecord, step: int) -> bool:
    """Return whether a step has the samples of two steps of another run, by their keys or their backwards."""
    keys, of_step = skipping.key_counts([step]), making.key_counts([step])
    if not of_step or of_step - keys or keys == of_step:
        return False
    if step + 1 < making.steps:
        of_step += making.key_counts([step + 1])
    return keys == of_step or skipping.at(step).backwards > making.at(step).backwards


def _as_many_others(comparison: Comparison, step: int) -> tuple[Cause, str, str]:
    """Return why a step uses as many samples as on one worker, but different ones, and what to do."""
    here, usual = (
        np.unique(np.concatenate([record.samples(k) for k in range(record.steps)]).round(KEY_DECIMALS))
        for record in (comparison.run, comparison.reference)
    )
    if comparison.reference.first_epoch() < comparison.reference.steps and len(here) < len(usual):
        left_out = len(np.setdiff1d(usual, here))
        return (
            "samples-left-out",
            f"{left_out} of the {len(usual)} samples {comparison.where} are never used; the order differs.",
            "Use samestep.UnpaddedSampler.",
        )
    if np.array_equal(here, usual):
        return (
            "other-order",
            f"step {step} uses other samples than {comparison.where}, though all steps use the same.",
            "Draw the order of all samples as one worker does, and shard its batches (samestep.shard).",
        )
    return "other-samples", f"step {step} uses other samples than {comparison.where}.", ""


def same_work(comparison: Comparison) -> Finding | None:
    """Find ranks that all use every sample of each step: the result is right, the work is repeated."""
    run = comparison.run
    if run.runs_once or comparison.size == 1 or not comparison.steps:
        return None
    for step in range(comparison.steps):
        first, *further = [np.sort(rank_step.samples) for rank_step in run.of_ranks(step)]
        usual = comparison.reference.samples(step)
        if not first.size or any(not same_samples(keys, first) for keys in (*further, usual)):
            return None
    if comparison.steps > 1 and same_samples(run.samples(0), run.samples(1)):
        return None  # data that does not change from step to step are not samples
    return comparison.finding(
        "overlapping-shards",
        "every rank uses all samples of every step, so all ranks compute the same training.",
        0,
        advice="Give each rank its own shard (samestep.shard, DistributedSampler).",
    )


def padded_evaluation(comparison: Comparison) -> Finding | None:
    """Find an evaluation that the ranks share, with more samples than on one worker, and another result."""
    counts = padding(comparison)
    if counts is None:
        return None
    numbers = deviating_numbers(comparison.reference, comparison.run, comparison.control)
    # A script can gather the results and drop the repeats, as `gather_for_metrics` does.
    if len(of_progress(numbers, comparison.reference)) == len(numbers):
        return None
    return comparison.finding(
        "padded-evaluation",
        f"evaluation counts {counts[0]} samples, {comparison.where} {counts[1]}: the sampler pads with "
        "repeats, and printed numbers differ.",
        advice="Use samestep.UnpaddedSampler for evaluation.",
    )


def padding(comparison: Comparison) -> tuple[int, int] | None:
    """Return the samples of the first evaluation that the ranks share and pad, and those on one worker."""
    run = comparison.run
    if run.runs_once:
        return None
    of_ranks = [trace.evaluations() for trace in run.traces]
    if comparison.other_samples is not None and 2 * len(of_ranks[0]) > max(2, comparison.steps):
        return None  # a model in evaluation mode, called in training steps
    for here, usual in zip(
        zip(*of_ranks, strict=False), comparison.reference.traces[0].evaluations(), strict=False
    ):
        counts = [len(keys) for keys in here]
        total = sum(counts) - (len(counts) - 1) * _common_end(here)
        if total > len(usual) > max(counts):
            return total, len(usual)
    return None


def _common_end(of_ranks: Sequence[Sequence[float]]) -> int:
    """Return how many samples all ranks evaluate last: a remainder that they do not share, and no padding."""
    equal = 0
    for keys in zip(*(reversed(evaluated) for evaluated in of_ranks), strict=False):
        if len(rounded_keys(keys)) > 1:
            break
        equal += 1
    return equal


def folder_order(comparison: Comparison, folders: Sequence[str]) -> Finding:
    """Return the exception that the runs are the same only if all ranks list folders in one order."""
    named = ", ".join(folders[:_NAMED]) + ", ..." * (len(folders) > _NAMED)
    return comparison.finding(
        "folder-order",
        f"the runs differ if each rank gets the entries of {named} in another order, as the file systems "
        "of several nodes may return them.",
        advice="Sort what os.listdir, os.scandir, glob and iterdir return.",
        kind="exception",
    )


def hash_order(comparison: Comparison) -> list[Finding]:
    """Return the exception that ranks with hash seeds of their own use other samples, or fail, if they do."""
    run = comparison.run
    if not run.steps:  # it has failed for another reason
        return []
    if run.failure is None and samples(comparison) is None and fewer_steps(comparison) is None:
        return []
    finding = comparison.finding(
        "set-order",
        "the runs differ if each rank is an interpreter of its own, as under torchrun: the order of a set of "
        "texts, and hash() of a text, differ between interpreters.",
        advice="Sort a set before its order counts, and use zlib.crc32 in place of hash.",
        kind="exception",
    )
    return [finding]


def fewer_steps(comparison: Comparison) -> Finding | None:
    """Find another number of steps than on one worker."""
    here, usual = comparison.run.steps, comparison.reference.steps
    if here == usual:
        return None
    return comparison.finding(
        "number-of-steps", f"the run has {here} steps, {comparison.where} {usual}.", comparison.steps
    )
