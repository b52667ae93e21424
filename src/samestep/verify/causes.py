"""Names the causes of a difference between two runs, the gravest first.

A later difference can follow from an earlier one, so a cause is named only if no other one explains it: ranks
whose gradients differ are found whatever their samples, but a gradient is compared with that of one worker
only in steps before the first with other samples or another learning rate.

A new cause needs a test in the module of its kind, its code in `verdict.Cause`, a row in
``docs/guide/verify.md``, and a script with that fault in ``tests/gallery_ddp``. ``CONTRIBUTING.md`` has an
example.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from samestep.verify.compare import Comparison
from samestep.verify.ending_causes import crash, hang, silent_copies, steps_differ
from samestep.verify.print_causes import printed_number, printed_text
from samestep.verify.sample_causes import (
    fewer_steps,
    no_set_epoch,
    padded_evaluation,
    same_work,
    samples,
)
from samestep.verify.value_causes import (
    averaging,
    buffers,
    divergence,
    learning_rate,
    loss_only,
    mean_of_means,
    scale,
    start,
    unknown,
)
from samestep.verify.verdict import Finding

_OF_ORDER = ("no-set-epoch", "other-order")
"""Faults of samples that change no number of samples, and so no length of an epoch."""

Test: TypeAlias = Callable[[Comparison], Finding | None]


def causes(comparison: Comparison) -> list[Finding]:
    """Return the independent faults of a run, the gravest first."""
    ending = _first(comparison, steps_differ, hang, crash, silent_copies)
    if ending is not None and ending.cause == "silent-copies":
        return [ending]
    if not comparison.steps:
        return [ending] if ending is not None else _all(comparison, fewer_steps)
    between_ranks = _all(comparison, averaging, start) or _all(comparison, divergence)
    if ending is not None:
        return [ending, *between_ranks]
    of_samples = _of_samples(comparison)
    of_rates = _of_rates(comparison, of_samples)
    of_values = [] if between_ranks else _of_values(comparison, of_samples, of_rates)
    found = [*between_ranks, *of_values, *of_samples, *of_rates]
    of_evaluation = _all(comparison, padded_evaluation)
    if of_evaluation and not found and not comparison.run.communicates_in_evaluation():
        of_evaluation += _all(comparison, printed_number)  # one rank cannot have counted all samples
    found += of_evaluation
    return found or _all(comparison, fewer_steps) or _all(comparison, loss_only, printed_number, printed_text)


def _of_samples(comparison: Comparison) -> list[Finding]:
    """Return the faults of the samples of training steps."""
    order, others = no_set_epoch(comparison), _first(comparison, samples, same_work)
    if order is None or others is None:
        return [one for one in (order, others) if one is not None]
    # An epoch in the order of the first one has other samples than on one worker, from the second epoch on.
    follows = others.step is None or others.step >= comparison.first_epoch
    return [order] if follows else [others, order]


def _of_rates(comparison: Comparison, of_samples: Sequence[Finding]) -> list[Finding]:
    """Return the fault of the learning rate, unless an epoch of another length explains it."""
    found = _all(comparison, learning_rate)
    has_same_epochs = all(one.cause in _OF_ORDER for one in of_samples)
    return [one for one in found if has_same_epochs or not one.step]


def _of_values(
    comparison: Comparison, of_samples: Sequence[Finding], of_rates: Sequence[Finding]
) -> list[Finding]:
    """Return the fault of gradients or losses before samples or learning rates differ."""
    same = comparison.until_samples_differ(of_samples)
    if of_rates:
        same = same.until_rates_differ(of_rates[0].step or 0)
    found = _first(same, scale, mean_of_means, buffers, unknown)
    return [] if found is None else [found]


def _first(comparison: Comparison, *tests: Test) -> Finding | None:
    return next((found for test in tests if (found := test(comparison)) is not None), None)


def _all(comparison: Comparison, *tests: Test) -> list[Finding]:
    return [found for test in tests if (found := test(comparison)) is not None]
