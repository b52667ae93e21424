"""The equivalence check splits calls, except those whose first batches agree only by chance."""

from functools import partial

import pytest

from samestep.autopilot.script.options import Options
from samestep.autopilot.split import averaged_gradients
from samestep.base.errors import DeviceFailed
from support import split_check_models as models
from support.script_runner import ALL_SPLIT

SPLIT = [models.ZeroHead, models.Masked, models.Divided, models.Penalized, models.Accuracy]
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
    found, split, unsplit, *_ = run(size, models.trained, make)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert split == 8
    assert not unsplit


@pytest.mark.parametrize("make", UNSPLIT, ids=lambda one: one.__name__)
def test_a_model_that_agrees_on_the_first_batch_by_chance_stays_unsplit(run, make):
    serial = models.trained(make)
    found, split, unsplit, *_ = run(2, models.trained, make)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    # Without gradients, a backward of its own is none of the call's.
    assert (split, unsplit) == ((4, 4) if make is models.OwnBackward else (0, 8))


def with_faulty_average(*, before):
    """Train while gradients are averaged once too often: those of one rank's slices, or the averages."""
    average = averaged_gradients._in_one_message

    def faulty(world, weights, gradients):
        def divided(tensors):
            return [tensor / world.place.size for tensor in tensors]

        return (
            average(world, weights, divided(gradients))
            if before
            else divided(average(world, weights, gradients))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaged_gradients, "_in_one_message", faulty)
        return models.trained(models.ZeroHead)


@pytest.mark.parametrize(("before", "reason"), [(False, " 0.5 times"), (True, "samples")])
def test_a_fault_of_the_function_that_averages_the_gradients_of_a_training_is_found(run, before, reason):
    """Only this finds a check that averages gradients by other code than the training."""
    serial = models.trained(models.ZeroHead)
    found, split, unsplit, lines = run(2, partial(with_faulty_average, before=before))
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (4, 4)  # split only without gradients
    parameter = next(iter(dict(models.ZeroHead().named_parameters())))
    assert any(parameter in line and reason in line for line in lines), lines


@pytest.mark.parametrize(
    "steps", [[(7, 8), (7, 8), (4, 8), (4, 8)], [(4, 8), (4, 8), (7, 8)], [(8, 8), (5, 8), (8, 5), (4, 3)]]
)
def test_the_sample_dimension_is_found_with_dropout_along_time(run, steps):
    serial = models.along_time(steps)
    found, _, unsplit, *_ = run(2, models.along_time, steps)
    assert found[1::2] == serial[1::2]
    assert found[::2] == pytest.approx(serial[::2], rel=0, abs=1e-12)
    assert not unsplit


def test_packed_sequences_are_padded_to_the_longest_of_the_batch(run):
    serial = models.packed()
    found, split, *_ = run(2, models.packed)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert split == 3


def test_a_dimension_that_is_ambiguous_until_later_calls_is_not_split(run):
    serial = models.masked_later()
    found, *_ = run(2, models.masked_later)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)


def test_guards_include_configuration_objects_and_dropout(run):
    serial = models.switched()
    found, split, unsplit, *_ = run(2, models.switched)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (4, 2)


def test_a_sample_check_replaces_a_result_that_differs_by_the_unsplit_one(run):
    serial = models.surprised()
    found, split, unsplit, lines = run(
        2, models.surprised, options=Options(check_every=1, short_calls="split")
    )
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (3, 3)
    assert any("a later call gave another result when it was split" in line for line in lines), lines


def test_parts_are_split_once_a_later_call_has_differed(processes):
    serial, options = models.surprised(), Options(check_every=1, short_calls="split")
    ((found, split, _),) = processes.run(models.parts_on_workers, 1, 2, options, models.surprised)
    assert found == pytest.approx(serial, rel=0, abs=1e-12)
    assert split > 3  # in each of three calls, but for their first ones, which are checked


@pytest.mark.parametrize("work", [models.of_single_samples, models.kept_unsplit])
def test_parts_are_left_alone_where_they_have_the_reason_of_the_whole(processes, work):
    ((found, *parts),) = processes.run(models.parts_on_workers, 1, 2, ALL_SPLIT, work)
    assert found == pytest.approx(work(), rel=0, abs=1e-12)
    assert parts == [0, 0]


def test_the_error_of_a_helpers_slice_is_the_reason(run):
    """The slice of worker 0 is longer, and does not fail."""
    serial = models.of_rows_by_number()
    found, split, _, lines = run(2, models.of_rows_by_number)
    assert (found, split) == (pytest.approx(serial, rel=0, abs=1e-12), 0)
    assert any("IndexError" in line and "split_check_models.py" in line for line in lines), lines


def test_sample_checks_do_not_change_the_results(run):
    for make in (models.ZeroHead, models.Penalized):
        serial = models.trained(make)
        found, split, *_ = run(2, models.trained, make, options=Options(check_every=1, short_calls="split"))
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert split == 8


def test_a_script_can_keep_a_model_unsplit(run):
    serial = models.kept_unsplit()
    found, split, *_ = run(2, models.kept_unsplit)
    assert found == serial
    assert not split


def test_a_running_mean_near_zero_is_compared_relative_to_its_inputs(run):
    serial = models.of_batch_norm()
    found, split, *_ = run(2, models.of_batch_norm)
    assert found == pytest.approx(serial, rel=1e-4)
    assert split == 3


def test_a_slice_that_fails_before_its_flattened_draws_fails_on_all_ranks(run):
    serial = models.failing_for_few()
    found, split, unsplit, *_ = run(2, models.failing_for_few)
    assert found == serial
    assert (split, unsplit) == (0, 1)


def test_autocast_keeps_no_weights_of_a_check(run):
    serial = models.under_autocast()
    found, split, *_ = run(2, models.under_autocast)
    assert found == serial
    assert split == 2


def test_a_device_that_fails_in_a_check_ends_the_run_with_the_model_and_the_line(run):
    with pytest.raises(DeviceFailed, match=r"DeviceFails .*device-side assert .*split_check_models\.py:\d+"):
        run(2, models.on_failing_device)
