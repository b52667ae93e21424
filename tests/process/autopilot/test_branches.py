"""Behavior that the first batches do not show is found by the equivalence check, or in the call itself."""

import pytest

from support import branching_models as models
from support.script_runner import ALL_SPLIT
from support.split_check_models import parts_on_workers


@pytest.mark.parametrize(
    ("make", "counts"),
    [
        # a dependence on other samples that only later batches show
        *((models.Compares, (0, 5)), (models.Scales, (0, 5)), (models.MissingTargets, (0, 5))),
        *((models.Clamps, (0, 5)), (models.NotesInBackward, (0, 5))),
        (models.Routes, (5, 0)),  # a branch that does not compare samples
        (models.Branches, (2, 3)),  # a branch that no check has covered
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_branches_that_only_later_batches_take_have_the_results_of_one_worker(compared, make, counts):
    split, unsplit, lines = compared(models.trained, make)
    assert (split, unsplit) == counts, lines


def test_a_parametrized_part_of_an_unsplit_model_is_split(processes):
    serial, work = models.trained(models.NotesInBackward), (models.trained, models.NotesInBackward)
    ((results, split, _),) = processes.run(parts_on_workers, 1, 2, ALL_SPLIT, *work)
    assert results == pytest.approx(serial, rel=0, abs=1e-12)
    assert split > 5


def test_cached_parametrized_weights_are_updated_as_in_the_serial_script(compared):
    split, *_ = compared(models.with_cache)
    assert split == 9
