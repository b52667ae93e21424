"""The equivalence check splits calls, except those whose first batches agree only by chance."""

import pytest

from samestep.autopilot.script.options import Options
from samestep.base.errors import DeviceFailed
from support import split_check_models as models
from support.script_runner import ALL_SPLIT

# Masks and divisors are among the cases of `test_host_reads`.
SPLIT = [models.ZeroHead, models.Selected, models.SumOfSmoothed, models.Penalized, models.Accuracy]
UNSPLIT = [
    models.Gated,
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
def test_losses_computed_inside_a_model_are_combined_by_weight(run, make, size):
    serial = models.trained(make)
    results, split, unsplit, *_ = run(size, models.trained, make)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split == 8
    assert not unsplit


@pytest.mark.parametrize("make", UNSPLIT, ids=lambda make: make.__name__)
def test_a_model_that_agrees_on_the_first_batch_by_chance_stays_unsplit(run, make):
    serial = models.trained(make)
    results, split, unsplit, *_ = run(2, models.trained, make)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    # Without gradients, a backward of its own is none of the call's.
    assert (split, unsplit) == ((4, 4) if make is models.OwnBackward else (0, 8))


@pytest.mark.parametrize(
    "steps", [[(7, 8), (7, 8), (4, 8), (4, 8)], [(4, 8), (4, 8), (7, 8)], [(8, 8), (5, 8), (8, 5), (4, 3)]]
)
def test_the_sample_dimension_is_found_with_dropout_along_time(run, steps):
    serial = models.along_time(steps)
    results, _, unsplit, *_ = run(2, models.along_time, steps)
    assert results[1::2] == serial[1::2]
    assert results[::2] == pytest.approx(serial[::2], rel=0, abs=1e-12)
    assert not unsplit


def test_packed_sequences_are_padded_to_the_longest_of_the_batch(run):
    serial = models.packed()
    results, split, *_ = run(2, models.packed)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split == 3


def test_a_dimension_that_is_ambiguous_until_later_calls_is_not_split(run):
    serial = models.masked_later()
    results, *_ = run(2, models.masked_later)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)


def test_guards_include_configuration_objects_and_dropout(run):
    serial = models.switched()
    results, split, unsplit, *_ = run(2, models.switched)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (4, 2)


def test_a_sample_check_replaces_a_result_that_differs_by_the_unsplit_one(run):
    serial = models.surprised()
    results, split, unsplit, lines = run(
        2, models.surprised, options=Options(check_every=1, short_calls="split")
    )
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (3, 3)
    assert any("a later call gave another result when it was split" in line for line in lines), lines


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


def test_the_error_of_a_helpers_slice_is_the_reason(run):
    """The slice of worker 0 is longer, and does not fail."""
    serial = models.of_rows_by_number()
    results, split, _, lines = run(2, models.of_rows_by_number)
    assert (results, split) == (pytest.approx(serial, rel=0, abs=1e-12), 0)
    assert any("IndexError" in line and "split_check_models.py" in line for line in lines), lines


def test_sample_checks_do_not_change_the_results(run):
    for make in (models.ZeroHead, models.Penalized):
        serial = models.trained(make)
        results, split, *_ = run(2, models.trained, make, options=Options(check_every=1, short_calls="split"))
        assert results == pytest.approx(serial, rel=0, abs=1e-12)
        assert split == 8


def test_a_script_can_keep_a_model_unsplit(run):
    serial = models.kept_unsplit()
    results, split, *_ = run(2, models.kept_unsplit)
    assert results == serial
    assert not split


def test_a_running_mean_near_zero_is_compared_relative_to_its_inputs(run):
    serial = models.of_batch_norm()
    results, split, *_ = run(2, models.of_batch_norm)
    assert results == pytest.approx(serial, rel=1e-4)
    assert split == 3


def test_a_slice_that_fails_before_its_flattened_draws_fails_on_all_ranks(run):
    serial = models.failing_for_few()
    results, split, unsplit, *_ = run(2, models.failing_for_few)
    assert results == serial
    assert (split, unsplit) == (0, 1)


def test_autocast_keeps_no_weights_of_a_check(run):
    serial = models.under_autocast()
    results, split, *_ = run(2, models.under_autocast)
    assert results == serial
    assert split == 2


def test_a_device_that_fails_in_a_check_ends_the_run_with_the_model_and_the_line(run):
    with pytest.raises(DeviceFailed, match=r"DeviceFails .*device-side assert .*split_check_models\.py:\d+"):
        run(2, models.on_failing_device)
