"""Disturbed calls have other valid values, and the model is restored."""

from itertools import chain

import pytest
import torch
from torch import nn

from samestep.autopilot.equivalence.disturbance import (
    Disturbance,
    DisturbedWeights,
    DoublePrecision,
    disturbances,
    disturbed_inputs,
    emptying,
    set_counters,
)
from samestep.autopilot.equivalence.positions import InputUses
from samestep.autopilot.split.call_arguments import CallArguments

X, TOKENS = (0, 0), (0, 1)
LENGTHS, MASK, LABELS = (0, 2), (0, 3), (0, 4)
DIMS = {X: 0, TOKENS: 0, LENGTHS: 0, MASK: 0, LABELS: 0}
USES = InputUses(frozenset({TOKENS}), frozenset(), {LABELS: frozenset({-100})})


def given():
    generator = torch.Generator().manual_seed(0)
    return CallArguments(
        (
            torch.rand(8, 3, generator=generator),
            torch.randint(0, 9, (8, 5), generator=generator),
            torch.tensor([5, 5, 5, 4, 4, 3, 2, 2]),
            torch.ones(8, 5, dtype=torch.bool),
            torch.randint(0, 3, (8,), generator=generator),
        )
    )


@pytest.mark.parametrize("how", [*chain(*disturbances(2, 8))], ids=str)
def test_disturbed_inputs_are_valid(how):
    x, tokens, lengths, mask, labels = disturbed_inputs(given(), DIMS, 8, how, USES).args
    count = how.samples or 8
    assert {len(one) for one in (x, tokens, lengths, mask, labels)} == {count}
    assert x.dtype == (torch.float64 if how.double else torch.float32)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 9
    assert 1 <= int(lengths.min()) <= int(lengths.max()) <= 5
    assert torch.equal(lengths, lengths.sort(descending=True).values)
    assert mask.dtype == torch.bool
    assert 0 <= int(labels.min()) <= int(labels.max()) < 3


def test_all_ranks_apply_the_same_disturbance():
    one, other = (disturbed_inputs(given(), DIMS, 8, Disturbance(2, 5), USES) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.args, other.args, strict=True))


def test_a_lopsided_batch_repeats_one_sample_per_slice():
    how = Disturbance(2, 4, inputs=False, lopsided=True)
    x = disturbed_inputs(given(), DIMS, 8, how, USES).args[0]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[2], x[3])
    assert not torch.equal(x[0], x[2])


def test_masks_labels_and_values_can_be_emptied():
    found = {(path, str(value)) for path, value in emptying(given(), DIMS, USES)}
    assert {(path, value) for path, value in found if path == X} == {(X, "nan"), (X, "0.0")}
    assert {(path, value) for path, value in emptying(given(), DIMS, USES) if path != X} == {
        (MASK, 0),
        (LENGTHS, -100),
        (LENGTHS, -1),
        (LABELS, -100),
        (LABELS, -1),
        (TOKENS, None),
        (TOKENS, -100),
        (TOKENS, -1),
    }
    unchecked = InputUses(unchecked=frozenset({TOKENS, MASK}))
    assert [value for path, value in emptying(given(), DIMS, unchecked) if path in (TOKENS, MASK)] == [
        None
    ] * 2
    how = Disturbance(2, 5, empties=(LABELS, -100))
    assert disturbed_inputs(given(), DIMS, 8, how, USES).args[4][-2:].tolist() == [-100, -100]


def test_samples_get_the_label_that_the_loss_of_a_script_ignores():
    """Only this finds checks with the usual ignored labels alone: segmentation ignores 255."""
    uses = InputUses(ignored={LABELS: frozenset({255})})
    assert (LABELS, 255) in emptying(given(), DIMS, uses)


@pytest.mark.parametrize("empties", [None, (TOKENS, None)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("is_checked", [True, False])
def test_indices_can_get_values_of_other_samples_at_the_same_place_only(empties, dim, is_checked):
    """The tables of two columns of indices may have other lengths."""
    tokens = 100 * torch.arange(5) + torch.randint(0, 9, (8, 5), generator=torch.Generator().manual_seed(2))
    tokens = tokens if dim == 0 else tokens.T.contiguous()
    uses = InputUses(frozenset({X})) if is_checked else InputUses(unchecked=frozenset({X}))
    how = Disturbance(2, 6, indices=not is_checked, empties=empties and (X, None))
    (other,) = disturbed_inputs(CallArguments((tokens,)), {X: dim}, 8, how, uses).args
    places = zip(tokens.unbind(1 - dim), other.unbind(1 - dim), strict=True)
    assert all(set(after.tolist()) <= set(before.tolist()) for before, after in places)
    rows = {tuple(row.tolist()) for row in tokens.unbind(dim)}
    assert not {tuple(row.tolist()) for row in other.unbind(dim)} <= rows
    if empties:
        smallest = tokens.amin(dim)
        assert all(torch.equal(row, smallest) for row in other.unbind(dim)[-3:])


def test_weights_are_disturbed_in_double_precision_and_restored_bit_by_bit():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    nn.init.zeros_(module[0].weight)
    before = {name: (one.data_ptr(), one.clone()) for name, one in module.state_dict().items()}
    with DisturbedWeights(module).applied(Disturbance(2)):
        assert module[0].weight.dtype == torch.float64
        assert module[0].weight.abs().min() > 0
        assert (module[1].running_var > 0).all()
        assert not torch.equal(module[1].running_mean, torch.zeros(4, dtype=torch.float64))
    for name, one in module.state_dict().items():
        assert (one.data_ptr(), one.dtype) == (before[name][0], before[name][1].dtype)
        assert torch.equal(one, before[name][1])


def test_comparisons_of_one_seed_share_weights_and_have_fresh_buffers(monkeypatch):
    drawn, draw = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda *args, **kwargs: drawn.append(args) or draw(*args, **kwargs))
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    weights, seen = DisturbedWeights(module), []
    for how in (Disturbance(2), Disturbance(2, scale=100.0), Disturbance(2, seed=3)):
        with weights.applied(how):
            seen.append([one.clone() for one in module.state_dict().values()])
            module[1].running_mean += 1  # as its forward does
    for one, other in zip(seen[0], seen[1], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(seen[0][0], seen[2][0])
    assert len(drawn) == 2 * len([*module.parameters()])

    weights.forget()
    with weights.applied(Disturbance(2, seed=3)):
        assert torch.equal(module[0].weight, seen[2][0])
    assert len(drawn) == 3 * len([*module.parameters()])


def test_new_and_cast_tensors_are_in_double_precision():
    with DoublePrecision():
        made = [torch.zeros(2), torch.tensor([1.0]), torch.ones(2).float(), torch.rand(2).to(torch.bfloat16)]
    assert {one.dtype for one in made} == {torch.float64}


def test_counters_are_set():
    module = nn.Sequential(nn.Linear(1, 1))
    module[0].calls = 3
    steps = torch.zeros((), dtype=torch.long)
    set_counters(module, [(1, "calls")], [steps], 2520)
    assert (module[0].calls, int(steps)) == (2520, 2520)
