"""Behavior that the first batches do not show is found by the equivalence check, or in the call itself."""

import pytest

from support import branching_models as models
from support.script_runner import ALL_SPLIT
from support.split_check_models import parts_on_workers


@pytest.mark.parametrize(
    "make",
    [models.Compares, models.Scales, models.MissingTargets, models.Clamps, models.NotesInBackward],
)
def test_a_dependence_that_only_later_batches_show_keeps_a_model_unsplit(run, make):
    serial = models.trained(make)
    results, split, unsplit, _ = run(2, models.trained, make)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (0, 5)


def test_a_parametrized_part_of_an_unsplit_model_is_split(processes):
    serial, work = models.trained(models.NotesInBackward), (models.trained, models.NotesInBackward)
    ((results, split, _),) = processes.run(parts_on_workers, 1, 2, ALL_SPLIT, *work)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split > 5


def test_a_branch_that_does_not_compare_samples_is_split(run):
    serial = models.trained(models.Routes)
    results, split, *_ = run(2, models.trained, models.Routes)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split == 5


def test_a_call_with_a_branch_that_no_check_has_covered_stays_unsplit(run):
    serial = models.trained(models.Branches)
    results, split, unsplit, lines = run(2, models.trained, models.Branches)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert (split, unsplit) == (2, 3), lines


def test_cached_parametrized_weights_are_updated_as_in_the_serial_script(run):
    serial = models.with_cache()
    results, split, *_ = run(2, models.with_cache)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split == 9
