"""Behavior that the first batches do not show is found by the equivalence check, or ends the run."""

import pytest

from support import branching_models as models
from support.split_check_models import on_rank


@pytest.mark.parametrize(
    "make",
    [models.Compares, models.Scales, models.MissingTargets, models.Clamps, models.NotesInBackward],
)
def test_a_dependence_that_only_later_batches_show_keeps_a_model_unsplit(processes, make):
    serial = models.trained(make)
    for found, split, unsplit in processes.run(on_rank, 2, None, models.trained, make):
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert (split, unsplit) == (0, 5)


def test_a_branch_that_does_not_compare_samples_is_split(processes):
    serial = models.trained(models.Routes)
    for found, split, _ in processes.run(on_rank, 2, None, models.trained, models.Routes):
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert split == 5


def test_an_unchecked_branch_ends_the_run_even_if_the_script_catches_the_error(processes):
    for refused, _, _ in processes.run(on_rank, 2, None, models.refused_calls, models.Branches):
        assert refused == [2, 3]


def test_cached_parametrized_weights_are_updated_as_in_the_serial_script(processes):
    serial = models.with_cache()
    for found, split, _ in processes.run(on_rank, 2, None, models.with_cache):
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert split == 9
