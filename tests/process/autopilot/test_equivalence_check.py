"""The equivalence check splits calls, except those whose first batches agree only by chance."""

from functools import partial

import pytest

from samestep.autopilot.helpers.main_calls import DIFFERS
from samestep.autopilot.script.options import Options
from samestep.autopilot.split import gradients
from samestep.base.errors import DeviceFailed
from support import split_check_models as models
from support.script_runner import ALL_SPLIT

# Masks and divisors are among the cases of `test_host_reads`.
SPLIT = [
    models.ZeroHead,
    models.Selected,
    models.MeanOfNumbers,
    models.SumOfSmoothed,
    models.Penalized,
    models.Accuracy,
]
UNSPLIT = [
    models.Gated,
    models.EveryThird,  # slices of three samples begin as it does
    models.Hardest,
    models.TwoWeights,
    models.Clamped,
    models.OwnBackward,
    models.CountsTo,
    models.CountsInTensor,
    models.RunningMaximum,
    models.Deque,
    models.Renormalized,
]


@pytest.mark.parametrize(("make", "size"), [*((make, 2) for make in SPLIT), (models.Masked, 3)])
def test_losses_computed_inside_a_model_are_combined_by_weight(compared, make, size):
    split, unsplit, _ = compared(models.trained, make, size=size)
    assert (split, unsplit) == (8, 0)


@pytest.mark.parametrize("make", UNSPLIT, ids=lambda make: make.__name__)
def test_a_model_that_agrees_on_the_first_batch_by_chance_stays_unsplit(compared, make):
    split, unsplit, _ = compared(models.trained, make)
    # Without gradients, a backward of its own is none of the call's.
    assert (split, unsplit) == ((4, 4) if make is models.OwnBackward else (0, 8))


def with_faulty_sum(*, before):
    """Train while gradients are divided by the ranks: those of one rank's slices, or the sums."""
    total = gradients._dense_sums

    def faulty(world, weights, gradients):
        def divided(tensors):
            return [None if tensor is None else tensor / world.place.size for tensor in tensors]

        if before:
            return total(world, weights, divided(gradients))
        return divided(total(world, weights, gradients))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "_dense_sums", faulty)
        return models.trained(models.ZeroHead)


@pytest.mark.parametrize(("before", "reason"), [(False, " 0.5 times"), (True, "samples")])
def test_a_fault_of_the_function_that_sums_the_gradients_of_a_training_is_found(run, before, reason):
    """Only this finds a check that sums gradients by other code than the training."""
    serial = models.trained(models.ZeroHead)
    found, split, unsplit, lines = run(2, partial(with_faulty_sum, before=before))
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (4, 4)  # split only without gradients
    parameter = next(iter(dict(models.ZeroHead().named_parameters())))
    assert any(parameter in line and reason in line for line in lines), lines


@pytest.mark.parametrize(
    "steps", [[(7, 8), (7, 8), (4, 8), (4, 8)], [(4, 8), (4, 8), (7, 8)], [(8, 8), (5, 8), (8, 5), (4, 3)]]
)
def test_the_sample_dimension_is_found_with_dropout_along_time(run, steps):
    serial = models.along_time(steps)
    results, _, unsplit, *_ = run(2, models.along_time, steps)
    assert results[1::2] == serial[1::2]
    assert results[::2] == pytest.approx(serial[::2], rel=0, abs=1e-12)
    assert not unsplit


@pytest.mark.parametrize(
    ("work", "counts"),
    [
        (models.packed, (3, 0)),  # sequences are padded to the longest of the batch
        (models.switched, (4, 2)),  # guards include configuration objects and dropout
        (models.kept_unsplit, (0, 1)),  # by the script
        (models.failing_for_few, (0, 1)),  # a slice that fails before its flattened draws fails on all ranks
        (models.under_autocast, (2, 0)),  # autocast keeps no weights of a check
        (models.dropping_under_autocast, (2, 0)),  # to cast a weight is no branch
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_have_the_results_of_one_worker(compared, work, counts):
    split, unsplit, lines = compared(work)
    assert (split, unsplit) == counts, lines


def test_a_dimension_that_is_ambiguous_until_later_calls_is_not_split(compared):
    compared(models.masked_later)


def test_a_sample_check_replaces_a_result_that_differs_by_the_unsplit_one(compared):
    options = Options(check_every=1, short_calls="split")
    split, unsplit, lines = compared(models.surprised, options=options)
    assert (split, unsplit) == (3, 3)
    assert any(DIFFERS in line for line in lines), lines


def test_calls_that_have_differed_stay_unsplit_after_a_check_of_another_size(compared):
    options = Options(check_every=4, short_calls="split")
    split, unsplit, lines = compared(models.surprised_at_two_sizes, options=options)
    assert (split, unsplit) == (3, 3), lines


def test_parts_are_split_once_a_later_call_has_differed(processes):
    serial, options = models.surprised(), Options(check_every=1, short_calls="split")
    ((results, split, _),) = processes.run(models.parts_on_workers, 1, 2, options, models.surprised)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split > 3  # in each of three calls, but for their first ones, which are checked


@pytest.mark.parametrize("work", [models.of_single_samples, models.kept_unsplit])
def test_parts_are_left_alone_where_they_have_the_reason_of_the_whole(processes, work):
    ((results, *parts),) = processes.run(models.parts_on_workers, 1, 2, ALL_SPLIT, work)
    assert results == pytest.approx(work(), rel=0, abs=1e-12)
    assert parts == [0, 0]


def test_the_error_of_a_helpers_slice_is_the_reason(compared):
    """The slice of worker 0 is longer, and does not fail."""
    split, _, lines = compared(models.of_rows_by_number)
    assert not split
    assert any("IndexError" in line and "split_check_models.py" in line for line in lines), lines


def test_sample_checks_do_not_change_the_results(compared):
    for make in (models.ZeroHead, models.Penalized):
        split, *_ = compared(models.trained, make, options=Options(check_every=1, short_calls="split"))
        assert split == 8


def test_a_running_mean_near_zero_is_compared_relative_to_its_inputs(run):
    serial = models.of_batch_norm()
    results, split, *_ = run(2, models.of_batch_norm)
    assert results == pytest.approx(serial, rel=1e-4)
    assert split == 3


def test_a_device_that_fails_in_a_check_ends_the_run_with_the_model_and_the_line(run):
    with pytest.raises(DeviceFailed, match=r"DeviceFails .*device-side assert .*split_check_models\.py:\d+"):
        run(2, models.on_failing_device)
