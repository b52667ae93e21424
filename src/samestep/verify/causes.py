"""Names the causes of a difference between two runs, the gravest first.

A later difference can follow from an earlier one, so a cause is named only if no other one explains it: ranks
whose gradients differ are found whatever their samples, but a gradient is compared with that of one worker
only in steps before the first with other samples or another learning rate.

A new cause needs a function here or in `sample_causes`, its code in `verdict.Cause`, a row in
``docs/guide/verify.md``, and a script with that fault in ``tests/gallery_ddp``. If its quantity is not
recorded yet: a field of `trace.Step`, which `Probe.before_step` fills; `parameter_alignment` if it belongs to
parameters or groups. ``CONTRIBUTING.md`` has an example.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

import numpy as np

from samestep.base.errors import OutOfStep, StepsDiffer, UsageError
from samestep.base.units import one_line
from samestep.launch.local.failure import Failure, follows_from_another
from samestep.ranks.hang.script_position import is_in_training_loop
from samestep.verify.compare import Comparison, Deviation, are_same_rates, is_half
from samestep.verify.printed_lines import deviating_numbers, deviating_text, of_progress
from samestep.verify.run_record import EQUAL, RunRecord, differ, relative
from samestep.verify.sample_causes import (
    fewer_steps,
    no_set_epoch,
    padded_evaluation,
    same_work,
    samples,
)
from samestep.verify.trace import Place
from samestep.verify.verdict import Cause, Finding

_HANGS = (OutOfStep.__name__, StepsDiffer.__name__)
_AVERAGED_PARAMETERS = (
    "The ranks average their parameters after the step, which is the step of the averaged gradient for plain "
    "SGD only: average the gradients before it."
)
_CLIPPED_BEFORE = (
    "The ranks clip gradients that differ, by norms of their own: average gradients before they are clipped."
)
_REDUCED_IN_STEP = (
    "Average the gradients over all ranks, before the optimizer or in its step, also if each rank updates a "
    "part of the parameters."
)
_OF_ALL_SAMPLES = (
    "rank 0 evaluates all samples itself, so the number is of its shard of the training, or it depends on "
    "the size of a batch. Sum it over the ranks, or weight the mean of each batch by its samples."
)
_COMBINED_MEAN = (
    "the ranks combine it, but as a mean of means, in which batches or shards of unequal size have equal "
    "weight, or of models that differ, such as an average of weights on one rank. Sum values and numbers of "
    "samples over the ranks, divide once, and evaluate one model."
)
_REPEATED_SUM = (
    "every rank evaluates all samples, and the ranks sum it, so it counts each sample on every rank. "
    "Evaluate a part of the samples on each rank, or do not sum."
)
_COMBINED_SUM = (
    "the ranks sum it, or divide the sum by the samples of one rank, or twice. Sum values and numbers of "
    "samples over the ranks, and divide once."
)
_OTHER_COMBINATION = (
    "the ranks combine numbers in that evaluation, but not to this result. Sum counts over the ranks, not "
    "means, and divide once by the number of all samples."
)
_OF_SHARD = "rank 0 prints it of its own shard, or divides by the samples there. Sum both over the ranks."
_NAMED = 3  # parameters that a message names
_OF_SHARED_BATCH = (
    "Add the gradients of what each rank computes for its part of the sequence, sum the gradient of the "
    "input of a layer over the ranks that have parts of it, and clip alike on all ranks."
)
_SCALE = 1e-3
"""Largest relative deviation of a gradient from a multiple of the reference's: above rounding, and below the
distance of two such multiples."""
_SCALE_OF_HALF = 0.05
"""The same for half precision, whose gradients deviate by a percent: a guess. Of a multiple near 1, it is a
tenth of its distance from 1."""
_OF_ORDER = ("no-set-epoch", "other-order")
"""Faults of samples that change no number of samples, and so no length of an epoch."""

Test: TypeAlias = Callable[[Comparison], Finding | None]


def causes(comparison: Comparison) -> list[Finding]:
    """Return the independent faults of a run, the gravest first."""
    ending = _first(comparison, _steps_differ, _hang, _crash, _silent_copies)
    if ending is not None and ending.cause == "silent-copies":
        return [ending]
    if not comparison.steps:
        return [ending] if ending is not None else _all(comparison, fewer_steps)
    of_ranks = between_ranks(comparison)
    if ending is not None:
        return [ending, *of_ranks]
    of_samples = _of_samples(comparison)
    of_rates = _of_rates(comparison, of_samples)
    of_ranks += _lost(comparison)
    of_values = [] if of_ranks else _of_values(comparison, of_samples, of_rates)
    findings = [*of_ranks, *of_values, *of_samples, *of_rates]
    of_evaluation = _all(comparison, padded_evaluation)
    if of_evaluation and not findings and not comparison.run.communicates_in_evaluation():
        of_evaluation += _all(comparison, _printed_number)  # one rank cannot have counted all samples
    findings += of_evaluation
    if findings:
        return findings
    return _all(comparison, fewer_steps) or _all(comparison, _loss_only, _printed_number, _printed_text)


def between_ranks(comparison: Comparison) -> list[Finding]:
    """Return the faults that the ranks of a run show by themselves, whatever the reference computes."""
    return _all(comparison, _averaging, _start) or _all(comparison, _divergence)


def _of_samples(comparison: Comparison) -> list[Finding]:
    """Return the faults of the samples of training steps."""
    order, different = no_set_epoch(comparison), _first(comparison, samples, same_work)
    if order is None or different is None:
        return [finding for finding in (order, different) if finding is not None]
    # An epoch in the order of the first one has other samples than on one worker, from the second epoch on.
    follows = different.step is None or different.step >= comparison.first_epoch
    return [order] if follows else [different, order]


def _of_rates(comparison: Comparison, of_samples: Sequence[Finding]) -> list[Finding]:
    """Return the faults of rate and weight decay, unless an epoch of another length explains them."""
    findings = _all(comparison, _learning_rate, _weight_decay)
    has_same_epochs = all(finding.cause in _OF_ORDER for finding in of_samples)
    return [finding for finding in findings if has_same_epochs or not finding.step]


def _of_values(
    comparison: Comparison, of_samples: Sequence[Finding], of_rates: Sequence[Finding]
) -> list[Finding]:
    """Return the fault of gradients or losses before samples or learning rates differ."""
    same = comparison.until_samples_differ(of_samples)
    if of_rates:
        same = same.until_rates_differ(min(finding.step or 0 for finding in of_rates))
    finding = _first(same, _scale, _mean_of_means, _buffers, _unknown)
    return [] if finding is None else [finding]


def _first(comparison: Comparison, *tests: Test) -> Finding | None:
    return next((finding for test in tests if (finding := test(comparison)) is not None), None)


def _all(comparison: Comparison, *tests: Test) -> list[Finding]:
    return [finding for test in tests if (finding := test(comparison)) is not None]


def _steps_differ(comparison: Comparison) -> Finding | None:
    """Find a rank whose loop ended while another rank began a further step."""
    run = comparison.run
    # A call after the last step, or a batch that is only accumulated, is no step where no rank waited.
    begun = [len(trace.steps) if run.failure is None else trace.begun for trace in run.traces]
    most, least = begun.index(max(begun)), begun.index(min(begun))
    hangs = run.failure is not None and run.failure.error == StepsDiffer.__name__
    is_over = hangs or (run.traces[least].facts.ended == "end" and not _has_exited_in_loop(run.failure))
    if run.runs_once or begun[most] == begun[least] or not is_over:
        return None
    report = f" ({run.failure.headline})" if hangs and run.failure is not None else ""
    return comparison.finding(
        "steps-differ",
        f"the loop of rank {least} ends after {begun[least]} steps, rank {most} begins another{report}. Give "
        "every rank as many batches (samestep.shard), or join() the model, and let all ranks decide alike "
        "when to stop.",
        begun[least],
    )


def _has_exited_in_loop(failure: Failure | None) -> bool:
    """Return whether the rank that others wait for has ended inside of its training loop, by `sys.exit`."""
    return failure is not None and failure.error == OutOfStep.__name__ and is_in_training_loop(failure.line)


def _hang(comparison: Comparison) -> Finding | None:
    """Find ranks of a distributed script that wait in different collectives, or for a rank that does not."""
    run = comparison.run
    if run.runs_once or run.failure is None or run.failure.error not in _HANGS:
        return None
    if any(trace.facts.ended in _HANGS for trace in run.traces):
        return None  # raised by the script, not by the watchdog
    return comparison.finding("hang", run.failure.message, run.steps, place=_place(run.failure.line))


def _crash(comparison: Comparison) -> Finding | None:
    """Find the error of the rank that failed first."""
    run = comparison.run
    failed = [trace.facts for trace in run.traces if trace.facts.ended not in ("steps", "end", "killed")]
    if not failed:
        return _death(comparison)
    independent = [facts for facts in failed if not follows_from_another(facts.ended, facts.message)]
    reported = {facts.rank for facts in failed}
    if not independent and run.failure is not None and run.failure.rank not in reported:
        return _death(comparison)
    reported_rank = None if run.failure is None else run.failure.rank
    first = min(
        independent or failed,
        key=lambda facts: (len(run.traces[facts.rank].steps), facts.rank != reported_rank),
    )
    where = "" if run.failure is None or reported_rank != first.rank else run.failure.line
    if first.ended in (UsageError.__name__, *_HANGS):
        message = f"{first.message}{where and f' ({where})'}"
        return comparison.finding("refused", message, run.steps, place=_place(where))
    words = [f"rank {first.rank} failed{where and f' at {where}'}", first.ended, _short(first.message)]
    message = ": ".join(filter(None, words))
    return comparison.finding("crash", message, run.steps, ranks=(first.rank,), place=_place(where))


def _short(message: str) -> str:
    """Return an error's text in one line; of an error in a DataLoader's process, without the traceback."""
    head, traceback, trace = message.partition("Original Traceback (most recent call last):")
    if traceback:
        message = f"{head} {trace.strip().splitlines()[-1]}"
    return one_line(message)


def _death(comparison: Comparison) -> Finding | None:
    """Return the failure of a run in which no rank reported an error itself."""
    failure, steps = comparison.run.failure, comparison.run.steps
    if failure is None:
        return None
    message = failure.message or f"rank {failure.rank} died: with exit code {failure.exit_code}."
    return comparison.finding("crash", message, steps, ranks=(failure.rank,), place=_place(failure.line))


def _place(line: str) -> Place | None:
    """Return file and number of a ``file:line``; None for an empty one."""
    file, _, number = line.rpartition(":")
    return (file, int(number)) if file and number.isdigit() else None


def _silent_copies(comparison: Comparison) -> Finding | None:
    """Find ranks that train apart, without a process group."""
    run, size = comparison.run, comparison.size
    if run.runs_once or size == 1 or any(trace.facts.group_size > 1 for trace in run.traces):
        return None
    if all(trace.facts.ended == "killed" for trace in run.traces):  # none has written whether it had a group
        return None
    return comparison.finding(
        "silent-copies",
        f"{size} workers ran without a common process group: {size} separate trainings. Call "
        "init_process_group in the script, or run the serial script with samestep run.",
    )


def _learning_rate(comparison: Comparison) -> Finding | None:
    """Find the first step with another learning rate than on one worker."""
    first = comparison.first_of("learning rate")
    if first is None:
        return None
    size, step = comparison.size, first.step
    optimizer = comparison.run.at(step).optimizer
    here, usual = (_rates_by_step(run, optimizer) for run in (comparison.run, comparison.reference))
    both = [(rates, usual[k]) for k, rates in here.items() if k in usual]
    if both and all(are_same_rates(a, [size * b for b in usual_rates]) for a, usual_rates in both):
        return comparison.finding(
            "lr-times-n",
            f"the learning rate is {size} times that {comparison.where}.",
            step,
            advice="Use the same rate for the same global batch: gradients are averaged, not summed.",
        )
    steps, usual_steps = [*here], [*usual]
    for ahead in (0, size - 1) if size > 1 else ():
        pairs = dict(zip(steps, usual_steps[ahead::size], strict=False))
        if len(pairs) > 1 and all(are_same_rates(here[k], usual[later]) for k, later in pairs.items()):
            from_step = f" of step {pairs[step]}" if step in pairs else ""
            return comparison.finding(
                "schedule-n-times",
                f"the learning rate of step {step} is that{from_step} {comparison.where}: the schedule steps "
                f"{size} times per step.",
                step,
                advice="Step it once.",
            )
    return comparison.finding(
        "learning-rate",
        f"the learning rate of step {step} is {_rates(here[step])}, {comparison.where} "
        f"{_rates(comparison.reference.at(step).learning_rates)}.",
        step,
    )


def _rates_by_step(run: RunRecord, optimizer: int) -> dict[int, Sequence[float]]:
    """Return the learning rates of one optimizer by step: each optimizer has a schedule of its own."""
    steps = {index: run.at(index) for index in range(run.steps)}
    return {index: step.learning_rates for index, step in steps.items() if step.optimizer == optimizer}


def _weight_decay(comparison: Comparison) -> Finding | None:
    """Find a weight decay that is N times that of one worker in all steps."""
    size = comparison.size
    pairs = [
        (comparison.run.at(step).weight_decays, comparison.reference.at(step).weight_decays)
        for step in range(comparison.steps)
    ]
    if size == 1 or not all(
        any(usual) and are_same_rates(here, [size * b for b in usual]) for here, usual in pairs
    ):
        return None
    here, usual = pairs[0]
    return comparison.finding(
        "weight-decay-times-n",
        f"the weight decay is {_rates(here)}, {size} times the {_rates(usual)} {comparison.where}.",
        0,
        advice="Use the same weight decay for the same global batch: it is applied once per step.",
    )


def _start(comparison: Comparison) -> Finding | None:
    """Find ranks that start with different parameters, of any optimizer."""
    first = {comparison.run.at(step).optimizer: step for step in reversed(range(comparison.steps))}
    differing = _first_differing(comparison, "before", sorted(first.values()))
    if differing is None:
        return None
    return comparison.finding(
        "replicas-differ-at-start",
        "the ranks start with different parameters.",
        differing,
        advice="Broadcast rank 0's (samestep.replicate, DistributedDataParallel), or draw them from one"
        " seed.",
    )


def _averaging(comparison: Comparison) -> Finding | None:
    """Find the first step in which the gradients of the ranks differ."""
    step = _first_differing(comparison, "gradient", range(comparison.steps))
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
    if comparison.run.shares_batch:
        return comparison.finding(
            "never-averaged",
            f"the ranks compute one batch together, and in step {step} the gradients of a parameter that all "
            "of them have differ.",
            step,
            advice=_OF_SHARED_BATCH,
        )
    return comparison.finding(
        "never-averaged",
        f"the ranks' gradients differ in step {step}: they are not averaged.",
        step,
        advice="Between backward and the optimizer's step, all-reduce each gradient and divide it by the "
        "number of ranks. DistributedDataParallel does so if it is called itself, not its .module; "
        "samestep.replicate does so too.",
    )


def _divergence(comparison: Comparison) -> Finding | None:
    """Find the first step after which the ranks' parameters differ, though their gradients are equal."""
    step = _first_differing(comparison, "after", range(comparison.steps))
    if step is None:
        return None
    if _first_differing(comparison, "before", [step]) is not None:
        return comparison.finding(
            "replicas-diverge",
            f"the ranks' parameters differ before step {step}, and were equal after the last step of that "
            "optimizer: the ranks change them in another way between the two.",
            step,
            advice="Load checkpoints, and change weights, alike on all ranks.",
        )
    return comparison.finding(
        "replicas-diverge",
        f"the ranks' parameters differ after step {step}, though their gradients are equal: the optimizer "
        "does something else on each rank.",
        step,
        advice="Give all ranks the same learning rate, state and clipping.",
    )


def _lost(comparison: Comparison) -> list[Finding]:
    """Find parameters that are trained on one worker, and by no rank."""
    findings = []
    for is_held in (False, True):
        names = [lost.name.partition(": ")[2] for lost in comparison.run.lost if lost.is_held == is_held]
        if not names:
            continue
        shown = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        cause: Cause = "not-in-optimizer" if is_held else "parameters-missing"
        deed, advice = (
            (
                "in an optimizer {where} and in none on any rank",
                "Give it to the optimizer of a rank that has it.",
            )
            if is_held
            else ("trained {where} and on no rank", "Divide all layers among the ranks, also a remainder.")
        )
        message = f"{shown} {'is' if len(names) == 1 else 'are'} {deed.format(where=comparison.where)}."
        module = names[0].rpartition(".")[0]
        findings.append(comparison.finding(cause, message, 0, advice=advice, module=module))
    return findings


def _scale(comparison: Comparison) -> Finding | None:
    """Find a gradient that is a multiple of that of one worker."""
    if comparison.first is None or comparison.first.quantity not in ("gradient", "gradient norm", "loss"):
        return None
    step, size = comparison.first.step, comparison.size
    here, usual = comparison.run.gradient(step), comparison.reference.gradient(step)
    is_comparable = here.shape == usual.shape and np.isfinite(here).all() and np.isfinite(usual).all()
    if not (is_comparable and usual.any()):
        return None
    factor = float(here @ usual / (usual @ usual))
    is_coarse = is_half(comparison.reference)
    off = max(_SCALE, min(_SCALE_OF_HALF, abs(factor - 1) / 10)) if is_coarse else _SCALE
    if abs(factor - 1) < _SCALE or not factor or relative(here / factor, usual) > off:
        return None
    factor, where = _before_clipping(comparison, step, factor, off)
    cause: Cause
    if abs(factor - size) < off * size:
        cause, why, advice = "sum-not-mean", ": it is summed over the ranks", "Divide it by their number."
    elif abs(factor * size - 1) < off:
        cause, why = "divided-twice", ": it is averaged twice, or each rank sums the loss over its samples"
        advice = (
            "Divide neither loss nor gradients by the number of workers, if something else does already; "
            "multiply a loss that is a sum by that number."
        )
    else:
        cause, why = "gradient-scale", ""
        advice = "The mean of the ranks' gradients is their sum divided by the number of ranks."
    message = f"the gradient of step {step} is {factor:.4g} times that {comparison.where}{where}{why}."
    return comparison.finding(cause, message, step, advice=advice)


def _before_clipping(comparison: Comparison, step: int, factor: float, off: float) -> tuple[float, str]:
    """Return the scale of a gradient before `clip_grad_norm_` has changed it, and words for that."""
    here, usual = comparison.run.at(step).unclipped, comparison.reference.at(step).unclipped
    if not here * usual or not np.isfinite(here * usual) or abs(here / usual - factor) < off * factor:
        return factor, ""
    return here / usual, " before it is clipped"


def _mean_of_means(comparison: Comparison) -> Finding | None:
    """Find the first step whose loss is weighted by rank instead of by sample."""
    first, run = comparison.first, comparison.run
    if first is None or first.quantity not in ("gradient", "gradient norm", "loss", "update"):
        return None
    counts = [run.counts(step) for step in range(first.step + 1)]
    *before, last = counts
    if any(len(set(of_step)) != 1 for of_step in before):
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
    of_ranks = [rank_step.divisors for rank_step in comparison.run.of_ranks(step)]
    if len({len(divisors) for divisors in of_ranks}) != 1:
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


def _buffers(comparison: Comparison) -> Finding | None:
    """Find ranks that start with different untrained tensors, if values differ from those of one worker."""
    if comparison.first is None or comparison.run.shares_batch:  # buffers can describe a rank's part
        return None
    facts = [trace.facts for trace in comparison.run.traces]
    if _vectors_differ([rank_facts.frozen for rank_facts in facts]):
        tensors = "parameters of a model that is not trained, such as a teacher"
        advice = "Broadcast rank 0's, or load or draw them with one seed."
    elif _vectors_differ([rank_facts.buffers for rank_facts in facts]):
        tensors = "buffers or frozen parameters, the tensors of the model that are not trained"
        advice = "Broadcast rank 0's (model.buffers()) like the parameters, or draw them from one seed."
    else:
        return None
    return comparison.finding(
        "buffers-differ-at-start",
        f"the ranks start with different {tensors}.",
        comparison.first.step,
        advice=advice,
    )


def _unknown(comparison: Comparison) -> Finding | None:
    """Find the first deviation, of whatever cause."""
    first = comparison.first
    if first is None or _is_loss_only(comparison):
        return None
    if comparison.run.reduces_in_step and first.quantity in ("update", "parameters"):
        return comparison.finding(
            "never-averaged",
            f"the ranks' gradients differ in step {first.step}, and the step leaves equal parameters, which "
            "are not those of the mean gradient.",
            first.step,
            advice=_REDUCED_IN_STEP,
        )
    samples = "equal" if comparison.has_same_samples(first.step) else "unknown"
    return comparison.finding(
        cast("Cause", first.quantity.replace(" ", "-")),
        f"the {first.quantity} of step {first.step} deviates by {first.value:.1e}, rounding explains "
        f"{first.allowed:.1e}; samples: {samples}.",
        first.step,
        advice=_advice(comparison, first),
    )


def _advice(comparison: Comparison, first: Deviation) -> str:
    """Return what explains the first deviation, if averages of another kind than on one worker do."""
    run = comparison.run
    if first.quantity in ("update", "parameters"):
        return _AVERAGED_PARAMETERS if run.averages_parameters else ""
    is_replicated = all(trace.facts.parameters == run.facts.parameters for trace in run.traces)
    if run.shares_batch or not is_replicated or first.quantity not in ("gradient", "gradient norm"):
        return ""
    return _CLIPPED_BEFORE if differ([step.unclipped] for step in run.of_ranks(first.step)) else ""


def _loss_only(comparison: Comparison) -> Finding | None:
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
    return {deviation.quantity for deviation in comparison.unexplained} == {"loss"}


def _first_differing(comparison: Comparison, name: str, steps: Iterable[int]) -> int | None:
    """Return the first of some steps in which a quantity differs between the ranks."""
    of_ranks = comparison.run.of_ranks
    return next(
        (step for step in steps if differ(getattr(rank_step, name) for rank_step in of_ranks(step))), None
    )


def _vectors_differ(of_ranks: Sequence[Sequence[float]]) -> bool:
    """Return whether the vectors of as many tensors differ between ranks."""
    first, *vectors = map(np.array, of_ranks)
    return any(vector.shape == first.shape and relative(vector, first) > EQUAL for vector in vectors)


def _rates(rates: Sequence[float]) -> str:
    """Return the distinct learning rates as text."""
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates)) or "none"


def _printed_number(comparison: Comparison) -> Finding | None:
    """Find printed numbers that differ though the training is the same."""
    numbers = deviating_numbers(comparison.reference, comparison.run, comparison.control)
    if not numbers:
        return None
    # Only one of several ranks prints the progress of its own shard.
    of_shard = of_progress(numbers, comparison.reference) if len(comparison.run.traces) > 1 else []
    progress = {id(number) for number in of_shard}
    # A number that is not the loss of rank 0's share is the graver fault.
    worst = max(numbers, key=lambda number: (id(number) not in progress, number.value))
    has_all = comparison.run.evaluates_all(comparison.reference, 0)  # rank 0, by itself
    cause: Cause
    if id(worst) in progress:
        cause, why = "local-print", "rank 0 prints the progress of its own shard there, not a result."
    elif comparison.run.runs_once or comparison.reference.origin != "one worker":
        cause, why = "printed", _fault_of_print(comparison)
    elif worst.is_combined:
        cause, why = "local-metric", _COMBINED_SUM if worst.is_multiple else _COMBINED_MEAN
    elif worst.is_multiple and any(comparison.run.combined()) and has_all:
        cause, why = "local-metric", _REPEATED_SUM
    elif any(comparison.run.combined()) and not comparison.reference.combined():
        cause, why = "local-metric", _OTHER_COMBINATION
    elif has_all:
        cause, why = "local-metric", _OF_ALL_SAMPLES
    else:
        cause, why = "local-metric", _OF_SHARD
    return Finding(
        cause=cause,
        message=f"the training is the same, but a number in {worst.line.strip()!r} deviates by "
        f"{worst.value:.1e} from {worst.usual.strip()!r}" + (f": {why}" if why else "."),
        workers=comparison.size,
        max_relative_deviation=worst.value if math.isfinite(worst.value) else None,
        kind="exception" if id(worst) in progress else "fault",
    )


def _fault_of_print(comparison: Comparison) -> str:
    """Return words for a print that only samestep, or the time, can change; empty if the script can."""
    fault = comparison.fault_of_samestep
    return f"{fault} If the time decides what is printed there, nothing is wrong." if fault else ""


def _printed_text(comparison: Comparison) -> Finding | None:
    """Find lines of other words, or without a partner, though the training is the same.

    A distributed script may well print something else for each number of workers: there it is an exception.
    """
    lines = deviating_text(comparison.reference, comparison.run, comparison.control)
    if lines is None:
        return None
    is_serial = comparison.run.runs_once
    usual, here = (repr(line.strip()) if line else "no such line" for line in lines)
    return Finding(
        cause="printed-text",
        message=f"the training is the same, but rank 0 prints {here}, {comparison.where} {usual}."
        + (f" {_fault_of_print(comparison)}" if is_serial else ""),
        workers=comparison.size,
        kind="fault" if is_serial else "exception",
    )
