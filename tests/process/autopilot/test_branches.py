"""Behavior that the first batches do not show is found by the equivalence check, or in the call itself."""

from functools import partial

import pytest
import torch
from torch import nn

from support import asking_models, reading_models
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
        # on what forward has selected, or reads by NumPy, and no number of a tensor
        *((models.Selects, (2, 3)), (models.Indexes, (2, 3)), (models.ReadsArray, (2, 3))),
        (models.Transposes, (4, 1)),  # the same operations along other dimensions
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


@pytest.mark.parametrize(
    "kind",
    [
        ("largest", "itself", "above"),
        ("nested list", "at least", "rest"),
        *(pytest.param(reading_models.kinds(seed), marks=pytest.mark.long) for seed in range(20)),
    ],
    ids=str,
)
def test_a_branch_on_a_number_that_only_later_batches_have_keeps_calls_whole(compared, kind):
    split, unsplit, lines = compared(reading_models.trained, reading_models.Reading, *kind)
    assert (split, unsplit) == (0, 5), lines


def test_a_loop_to_a_number_of_the_samples_is_split(compared):
    split, unsplit, lines = compared(partial(reading_models.trained, rare=8), reading_models.Loops)
    assert (split, unsplit) == (5, 0), lines


def test_a_call_that_asks_whether_its_input_is_a_parameter_has_the_result_of_one_worker(compared):
    split, unsplit, lines = compared(reading_models.of_parameter)
    assert (split, unsplit) == (0, 3), lines


@pytest.mark.parametrize(
    ("asked", "change"), asking_models.CHANGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_branch_on_what_a_module_holds_has_the_result_of_one_worker_after_a_change(compared, asked, change):
    split, unsplit, lines = compared(asking_models.changed_later, asked, change)
    assert (split, unsplit) == (3, 3), lines


@pytest.mark.parametrize(("asked", "sizes"), asking_models.SIZES, ids=["of rows", "of all samples"])
def test_a_branch_on_a_size_that_no_check_has_had_has_the_result_of_one_worker(compared, asked, sizes):
    split, unsplit, lines = compared(asking_models.of_sizes, asked, sizes)
    assert unsplit < split, lines


def test_a_branch_on_the_size_of_a_kept_state_has_the_result_of_one_worker(compared):
    sizes = [(7, 3)] * 6 + [(9, 3)] * 4
    split, _, lines = compared(
        asking_models.of_sizes, asking_models.is_of_nine, sizes, asking_models.AsksForState
    )
    assert split >= 4, lines


def test_a_branch_of_compiled_code_on_what_a_module_holds_has_the_result_of_one_worker(compared):
    work = partial(asking_models.changed_later, compiled=True)
    split, _, lines = compared(work, asking_models.has_mean, asking_models.set_mean)
    assert split == 3, lines


class Phased(nn.Linear):
    """Has another phase during a call, which ends early where a slice reads what no check has read."""

    phase = 0

    def forward(self, x):
        factor, self.phase = 1 + self.phase, 1
        y = super().forward(x) * factor
        if (x == 7).any():
            y = y + 1
        self.phase = 0
        return y


def phased():
    model = Phased(3, 2).double()
    nn.init.constant_(model.weight, 0.3)
    nn.init.constant_(model.bias, 0.1)
    drawn = torch.Generator().manual_seed(1)
    results = []
    for number in range(5):
        x, tested = torch.rand(2, 8, 3, dtype=torch.float64, generator=drawn)
        x[-1, 0] = 7 if number == 3 else 0
        results += [model.train()(x).sum().item(), model.eval()(tested).sum().item()]
    return results


def test_helpers_get_a_module_again_after_a_slice_of_it_has_failed(compared):
    """Only this finds the next calls with what the failed slice has left in the module of a helper."""
    split, unsplit, lines = compared(phased)
    assert unsplit, lines
    assert split > unsplit, lines
