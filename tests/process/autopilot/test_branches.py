"""What the first batches hide is found in the equivalence check, or ends the run when it shows."""

import pytest

from support import branching_models as models
from support.chance_models import on_rank


@pytest.mark.parametrize(
    "make",
    [models.Compares, models.Scales, models.MissingTargets, models.Clamps, models.NotesInBackward],
)
def test_what_later_batches_hold_keeps_a_model_unsplit(processes, make):
    serial = models.trained(make)
    for found, split, unsplit in processes.run(on_rank, 2, None, models.trained, make):
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert (split, unsplit) == (0, 5)


@pytest.mark.parametrize("size", [2, 3])
def test_a_branch_that_does_not_compare_samples_is_split(processes, size):
    serial = models.trained(models.Routes)
    for found, split, _ in processes.run(on_rank, size, None, models.trained, models.Routes):
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert split == 5


def test_a_branch_that_no_check_took_ends_the_run_even_if_the_script_catches_the_error(processes):
    for refused, _, _ in processes.run(on_rank, 2, None, models.refused_calls, models.Branches):
        assert refused == [2, 3]


def test_weights_that_torch_keeps_are_those_of_the_script(processes):
    serial = models.with_cache()
    for found, split, _ in processes.run(on_rank, 2, None, models.with_cache):
        assert found == pytest.approx(serial, rel=0, abs=1e-12)
        assert split == 9
