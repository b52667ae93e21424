"""Ranks that compute one batch together are recognized, and what they have parts of is joined."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from samestep.verify.causes import causes
from samestep.verify.compare import Comparison
from samestep.verify.model_parallel import grouped, joined_parts, joined_sequences, place_in
from samestep.verify.parameter_alignment import UnmatchedParametersError, align_parameters
from samestep.verify.run_record import EQUAL, RunRecord, merged, relative
from samestep.verify.tensor_summary import PartPlace, sketch
from samestep.verify.trace import Facts, OptimizerParameter, Step, Trace

STEPS = 3


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trace(rank, tensors, *, places=None, samples=(1.0, 2.0), sums=(), gradient=1.0, **facts):
    """Return the trace of a rank whose optimizer has some tensors, by name."""
    start = sketch(tensors.values(), places)
    steps = [
        Step(
            index=k,
            samples=[sample + 10 * k for sample in samples],
            sums=list(sums),
            losses=[1.0 / (k + 1)],
            gradient=(gradient * np.array(start)).tolist(),
            gradient_norm=1.0,
            before=start,
            after=start,
        )
        for k in range(STEPS)
    ]
    places = places or [None] * len(tensors)
    held = [
        OptimizerParameter(f"0: {name}", tuple(tensor.shape) if place is None else place.shape, 0)
        for (name, tensor), place in zip(tensors.items(), places, strict=True)
    ]
    known = Facts(rank=rank, group_size=2, epsilon=1e-16, ended="end", parameters=[held])
    return Trace(replace(known, **facts), steps, STEPS)


def both(first, second, **how):
    return merged(grouped(RunRecord([first, second], **how)))


@pytest.mark.parametrize(
    ("whole", "part", "found"),
    [
        ((8, 6), (4, 6), PartPlace((8, 6), 0, 2, 1)),
        ((8, 6), (8, 3), PartPlace((8, 6), 1, 2, 1)),
        ((8, 6), (2, 6), PartPlace((8, 6), 0, 4, 3)),
        ((8,), (4,), PartPlace((8,), 0, 2, 1)),
        ((8, 6), (8, 6), None),
        ((8, 6), (4, 3), None),
        ((9, 6), (4, 6), None),
        ((9, 6), (3, 6), None),  # three parts on four ranks
        ((), (4, 6), None),
    ],
)
def test_a_part_is_placed_along_the_dimension_that_is_shorter(whole, part, found):
    assert place_in(whole, part, rank=3, size=4) == found


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_sketches_of_parts_add_up_to_that_of_the_whole(dim):
    whole = drawn(4, 6, 8)
    parts = [
        sketch([part], [PartPlace((4, 6, 8), dim, 2, index)])
        for index, part in enumerate(whole.chunk(2, dim))
    ]
    assert np.allclose(np.sum(parts, 0), sketch([whole]))
    assert sketch([None], [PartPlace((4, 6, 8), dim, 2, 0)]) == sketch([None])


@pytest.mark.parametrize(
    ("exchanged", "second", "samples"),
    [
        (([1.0, 2.0], [2.0, 1.0]), (1.0, 2.0), [2, 0]),  # activations of two parts of a model
        (([1.0, 2.0], [1.0, 2.0]), (1.0, 2.0), [2, 2]),  # copies that get one batch by mistake
        (([], []), (1.0, 2.0), [2, 2]),
        (([1.0, 2.0], [2.0, 1.0]), (3.0, 4.0), [2, 2]),  # statistics of two shards
    ],
    ids=["parallel", "copies", "no collective", "shards"],
)
def test_one_batch_counts_once_if_the_ranks_compute_different_values_from_it(exchanged, second, samples):
    model = {"weight": drawn(3, 3)}
    seen = both(
        trace(0, model, exchanged=exchanged[0]), trace(1, model, samples=second, exchanged=exchanged[1])
    )
    assert [len(step.samples) for step in seen.of_ranks(0)] == samples


def test_losses_of_parts_of_a_batch_are_all_kept():
    model = {"weight": drawn(3, 3)}
    first, second = (trace(rank, model, exchanged=[float(rank)]) for rank in (0, 1))
    second.steps[0].losses = [7.0]
    assert [step.losses for step in both(first, second).of_ranks(0)] == [[1.0], [7.0]]


def in_parts(whole, *, swapped=False, **of_second):
    """Return the reference and a run of two ranks with the halves of a weight, and the same norm."""
    norm = drawn(8, seed=1)
    reference = RunRecord([trace(0, {"up.weight": whole, "norm.weight": norm})])
    halves = whole.chunk(2, 0)
    ranks = [
        trace(
            rank,
            {"up.weight": halves[1 - rank if swapped else rank], "norm.weight": norm},
            places=[PartPlace(tuple(whole.shape), 0, 2, rank), None],
            parts={"0: up.weight": 2},
            exchanged=[float(rank)],
            **(of_second if rank else {}),
        )
        for rank in (0, 1)
    ]
    return reference, both(*ranks)


def compared(reference, run):
    run = joined_parts(reference, run)
    return Comparison(*align_parameters(reference, run, reference, drops=True))


def test_parts_that_make_the_whole_are_joined():
    comparison = compared(*in_parts(drawn(6, 4)))
    assert causes(comparison) == []
    assert not comparison.run.has_unmatched
    assert relative(comparison.run.gradient(0), comparison.reference.gradient(0)) < EQUAL


def test_parts_that_do_not_make_the_whole_are_left_out_and_the_others_are_compared():
    comparison = compared(*in_parts(drawn(6, 4), swapped=True))
    assert comparison.run.has_unmatched
    assert len(comparison.run.gradient(0)) == len(sketch([drawn(8)]))
    assert causes(comparison) == []


def of_two_optimizers(first, second):
    """Return the run of one rank whose two optimizers have these tensors."""
    traces = [trace(0, first), trace(0, second)]
    steps = [
        replace(step, optimizer=number)
        for number, of_optimizer in enumerate(traces)
        for step in of_optimizer.steps
    ]
    held = [parameters for of_optimizer in traces for parameters in of_optimizer.facts.parameters]
    return RunRecord([Trace(replace(traces[0].facts, parameters=held), steps, len(steps))])


def test_a_constant_parameter_is_left_out_though_another_optimizer_changes_its_own():
    """Only this finds the gradients of the other optimizer as those of the parameter."""
    weight, moving = {"weight": drawn(3, 3)}, {"scale": drawn(4, seed=1), "shift": drawn(5, seed=2)}
    usual = of_two_optimizers({**weight, "constant": torch.zeros(4)}, moving)
    reference, run = align_parameters(usual, of_two_optimizers(weight, moving))
    assert [len(record.gradient(0)) for record in (reference, run)] == [len(sketch([drawn(3, 3)]))] * 2


def test_parts_in_another_optimizer_than_on_one_worker_are_not_joined():
    reference, run = in_parts(drawn(6, 4))
    (first,) = reference.traces
    held = first.facts.parameters[0]
    divided = [held[1:], held[:1]]  # each of two optimizers has one of the parameters
    reference = replace(reference, traces=[replace(first, facts=replace(first.facts, parameters=divided))])
    with pytest.raises(UnmatchedParametersError):
        compared(reference, run)


@pytest.mark.parametrize("swapped", [False, True])
def test_other_gradients_of_what_all_ranks_have_are_a_fault(swapped):
    found = causes(compared(*in_parts(drawn(6, 4), swapped=swapped, gradient=1.5)))
    assert [finding.cause for finding in found] == ["never-averaged"]


def test_buffers_that_describe_parts_explain_no_difference():
    reference, run = in_parts(drawn(6, 4))
    for rank, of_rank in enumerate(run.traces):
        of_rank.facts.buffers = [float(rank)]
        for step in of_rank.steps:
            step.gradient = [2.5 * number + 1 for number in step.gradient]
    assert [finding.cause for finding in causes(compared(reference, run))] == ["gradient"]


def test_unmatched_parts_of_ranks_with_their_own_batches_are_refused():
    reference, _ = in_parts(drawn(6, 4))
    run = RunRecord([trace(rank, {"flat": drawn(5, seed=rank)}, samples=(float(rank),)) for rank in (0, 1)])
    with pytest.raises(UnmatchedParametersError):
        compared(reference, run)


def experts(numbers):
    """Return experts, counted from 0, whose biases are all zero at the start."""
    return {
        f"experts.{k}.{kind}": drawn(4, 4, seed=number) if kind == "weight" else torch.zeros(4)
        for k, number in enumerate(numbers)
        for kind in ("weight", "bias")
    }


def with_gradients(record):
    """Return a record in which biases, too, have gradients, those of their weights."""
    for of_rank in record.traces:
        for step in of_rank.steps:
            blocks = np.array(step.gradient).reshape(-1, 2, 16)
            blocks[:, 1] = blocks[:, 0]
            step.gradient = blocks.ravel().tolist()
    return record


def test_experts_that_each_rank_counts_from_0_are_matched_by_their_values():
    reference = with_gradients(RunRecord([trace(0, experts([0, 1, 2, 3]))]))
    run = with_gradients(
        both(*(trace(rank, experts([rank, rank + 2]), exchanged=[float(rank)]) for rank in (0, 1)))
    )
    comparison = compared(reference, run)
    assert causes(comparison) == []
    assert relative(comparison.run.gradient(0), comparison.reference.gradient(0)) == 0.0


@pytest.mark.parametrize("has_replicas", [False, True])
def test_a_divided_model_is_not_a_divided_optimizer(has_replicas):
    reference = with_gradients(RunRecord([trace(0, experts([0, 1]))]))
    elsewhere = [
        [OptimizerParameter(f"0: experts.{1 - rank}.{kind}", (4, 4), 0) for kind in ("weight", "bias")]
        for rank in (0, 1)
    ]
    models = [dict(list(experts([0, 1]).items())[2 * rank : 2 * rank + 2]) for rank in (0, 1)]
    ranks = [
        trace(rank, models[rank], samples=(rank,), without_optimizer=elsewhere[rank] if has_replicas else [])
        for rank in (0, 1)
    ]
    comparison = compared(reference, with_gradients(both(*ranks)))
    assert comparison.run.holds_parts == (not has_replicas)
    assert len(comparison.run.gradient(0)) == len(comparison.reference.gradient(0))


@pytest.mark.parametrize("is_held", [False, True])
def test_parameters_that_no_rank_trains_are_named(is_held):
    reference = with_gradients(RunRecord([trace(0, experts([0, 1, 2]))]))
    held = [OptimizerParameter("0: experts.2.weight", (4, 4), 0)] * is_held
    ranks = [trace(rank, experts([0, 1]), samples=(float(rank),), without_optimizer=held) for rank in (0, 1)]
    reference.traces[0].steps[:] = [replace(step, samples=[0.0, 1.0]) for step in reference.traces[0].steps]
    (first, *further) = causes(compared(reference, with_gradients(both(*ranks))))
    names = {finding.cause for finding in (first, *further)}
    # Its bias is in no model of a rank.
    assert "parameters-missing" in names
    assert ("not-in-optimizer" in names) == is_held
    assert first.module == "experts.2"


def test_a_reference_without_a_parameter_of_the_run_is_not_compared():
    reference = with_gradients(RunRecord([trace(0, experts([0]))]))
    run = with_gradients(RunRecord([trace(rank, experts([0, 1]), samples=(float(rank),)) for rank in (0, 1)]))
    with pytest.raises(UnmatchedParametersError):
        compared(reference, run)


@pytest.mark.parametrize(
    ("sums", "samples"),
    [(([1.0, 5.0], [2.0, -1.0]), [2, 0]), (([1.0, 5.0], [2.0, 3.0]), [2, 2]), (([1.0], [2.0]), [2, 2])],
    ids=["parts", "other samples", "fewer"],
)
def test_parts_of_all_samples_are_these_samples(sums, samples):
    model = {"weight": drawn(3, 3)}
    reference = RunRecord([trace(0, model, sums=[3.0, 4.0])])
    run = RunRecord(
        [
            trace(rank, model, samples=(5.0 + rank, 7.0 + rank), sums=of_rank)
            for rank, of_rank in enumerate(sums)
        ]
    )
    joined = joined_sequences(reference, run)
    assert [len(step.samples) for step in joined.of_ranks(0)] == samples
