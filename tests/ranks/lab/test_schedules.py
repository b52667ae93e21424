"""Schedules compute precisely, send large tensors in pieces, and refuse calls that are wrong or differ.

Their results for any number of ranks, type, shape and operation are tested by the conformance kit.
"""

import re

import pytest
import torch

from samestep.base.errors import OutOfStep, UsageError
from samestep.ranks.collectives import consistency_check
from samestep.ranks.world.thread_world import run_ranks
from samestep_lab.collectives import executor
from samestep_lab.collectives.algorithms import (
    ALL_REDUCE,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)

SUMMED = ["naive", "tree", "ring", "halving_doubling", "native"]
COPIED = ["naive", "tree", "scatter_all_gather", "native"]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", ["naive", "tree", "ring", "halving_doubling"])
def test_large_tensors_are_sent_in_pieces(name, early, monkeypatch):
    monkeypatch.setattr(executor, "PIECE", 32)
    for module in (executor, consistency_check):
        monkeypatch.setattr(module, "may_post_receives_early", lambda tensor: early)
    every = [torch.randn(101, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]

    def fn(world):
        tensor = every[world.place.rank].clone()
        ALL_REDUCE[name](world, tensor, "sum")
        return tensor

    first, *others = run_ranks(fn, 3)

    assert torch.allclose(first.double(), torch.stack(every).double().sum(0), atol=1e-6)
    assert all(torch.equal(first, other) for other in others)


def test_half_precision_is_summed_in_single_precision():
    values = [1.0, 2**-9, 2**-9, 2**-9, 2**-9]

    def fn(world):
        tensor = torch.tensor([values[world.place.rank]], dtype=torch.bfloat16)
        ALL_REDUCE["naive"](world, tensor, "sum")
        return tensor.item()

    assert run_ranks(fn, 5) == [1.0 + 2**-7] * 5


@pytest.mark.parametrize("size", [6, 8])
def test_a_half_precision_mean_does_not_overflow(size):
    def fn(world):
        every = torch.full((size, 3), 16384.0, dtype=torch.float16)
        means = [REDUCE_SCATTER["ring"](world, every, "mean")]
        for name in SUMMED:
            means.append(every.clone())
            ALL_REDUCE[name](world, means[-1], "mean")
        root = every.clone()
        REDUCE["tree"](world, root, "mean", 0)
        return [mean.unique().tolist() for mean in (*means, root)]

    assert run_ranks(fn, size) == [[[16384.0]] * (len(SUMMED) + 2)] * size


@pytest.mark.parametrize("op", ["sum", "mean", "product", "sum of lazy conjugates"])
@pytest.mark.parametrize("name", SUMMED)
def test_complex_numbers(name, op):
    every = [torch.tensor([1 + 2j, 3.0, 1j]) * (rank + 1) for rank in range(3)]
    is_lazy, op = "lazy" in op, op.partition(" ")[0]

    def fn(world):
        tensor = every[world.place.rank].clone()
        tensor = tensor.conj() if is_lazy else tensor
        ALL_REDUCE[name](world, tensor, op)
        return tensor.resolve_conj()

    stack = torch.stack(every)
    exact = {"sum": stack.sum, "mean": stack.mean, "product": stack.prod}[op](0)
    exact = exact.conj() if is_lazy else exact
    assert all(torch.allclose(tensor, exact) for tensor in run_ranks(fn, 3))


ROOTED = {
    "scatter": lambda world, root: SCATTER["tree"](world, torch.ones(3), root),
    "reduce": lambda world, root: REDUCE["tree"](world, torch.ones(3), "sum", root),
    "gather": lambda world, root: GATHER["tree"](world, torch.ones(3), root),
    **{
        f"broadcast by {name}": lambda world, root, name=name: BROADCAST[name](world, torch.ones(3), root)
        for name in COPIED
    },
}


@pytest.mark.parametrize("root", [-1, 3])
@pytest.mark.parametrize("name", ROOTED)
def test_an_invalid_root_is_refused_with_its_value(name, root):
    with pytest.raises(UsageError, match=rf"\brank {root}\b.*\b3\b"):
        run_ranks(lambda world: ROOTED[name](world, root), 3)


@pytest.mark.parametrize("name", SUMMED)
def test_the_mean_of_integers_is_refused_with_the_type(name):
    with pytest.raises(UsageError, match=r"mean of torch\.int64"):
        run_ranks(lambda world: ALL_REDUCE[name](world, torch.ones(3, dtype=torch.int64), "mean"), 2)


DIFFERENT = {
    "shapes": (
        lambda world, odd: ALL_REDUCE["ring"](world, torch.ones(3, 4 if odd else 5), "sum"),
        r"all-reduce sum by ring of float32 \[3, 5\].*all-reduce sum by ring of float32 \[3, 4\]",
    ),
    "shapes of many dimensions": (
        lambda world, odd: ALL_REDUCE["ring"](world, torch.ones(*(1,) * 60, 4 if odd else 5), "sum"),
        r"all-reduce sum by ring of float32 \[1, 1, .*all-reduce sum by ring of float32 \[1, 1, ",
    ),
    "types": (
        lambda world, odd: ALL_REDUCE["tree"](
            world, torch.ones(3, dtype=torch.float64 if odd else None), "sum"
        ),
        r"float32 \[3\].*float64 \[3\]",
    ),
    "operations": (
        lambda world, odd: ALL_REDUCE["naive"](world, torch.ones(3), "max" if odd else "sum"),
        r"all-reduce sum by.*all-reduce max by",
    ),
    "algorithms": (
        lambda world, odd: ALL_REDUCE["tree" if odd else "ring"](world, torch.ones(3), "sum"),
        r"by ring.*by tree",
    ),
    "roots": (
        lambda world, odd: BROADCAST["tree"](world, torch.ones(3), int(odd)),
        r"broadcast from rank 0.*broadcast from rank 1",
    ),
    "collectives": (
        lambda world, odd: (GATHER["tree"] if odd else SCATTER["tree"])(world, torch.ones(5), 0),
        r"scatter from rank 0.*gather to rank 0",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_different_calls_are_reported_on_all_ranks(what, size):
    call, words = DIFFERENT[what]

    def fn(world):
        odd = world.place.rank == size - 1
        with pytest.raises(OutOfStep) as raised:
            call(world, odd)
        return str(raised.value)

    *most, last = run_ranks(fn, size)

    for text in most:
        assert re.search(words, text)
    assert f"rank {size - 1} calls" in last


@pytest.mark.parametrize(("collective", "last"), [(SCATTER["tree"], 0), (REDUCE_SCATTER["ring"], "sum")])
def test_a_tensor_without_one_row_per_rank_is_refused_with_its_shape(collective, last):
    with pytest.raises(UsageError, match=r"\[4, 2\].*\b3 ranks"):
        run_ranks(lambda world: collective(world, torch.ones(4, 2), last), 3)
