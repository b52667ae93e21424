"""All algorithms pass the checks of the conformance kit between processes, among any of eight ranks."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.ranks.collectives.shared_memory import PIECE, OneHostWorld, on_one_host
from samestep.ranks.world.operation import OPS
from samestep_lab.collectives.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from samestep_lab.testing import judge
from samestep_lab.testing.cases import Case, random_tensor
from samestep_lab.testing.judge import Result
from support.subgroup import Subgroup

ALL = 8
KIT = {
    "all_reduce": (judge.all_reduced, ALL_REDUCE, ("op",)),
    "broadcast": (judge.broadcast, BROADCAST, ("root",)),
    "all_gather": (judge.all_gathered, ALL_GATHER, ()),
    "reduce": (judge.reduced_to_root, REDUCE, ("op", "root")),
    "reduce_scatter": (judge.reduce_scattered, REDUCE_SCATTER, ("op",)),
    "gather": (judge.gathered, GATHER, ("root",)),
    "scatter": (judge.scattered, SCATTER, ("root",)),
}
ALGORITHMS = [(collective, name) for collective, (_, algorithms, _) in KIT.items() for name in algorithms]
WHOLE = ("native", "direct")
"""Algorithms that take the ranks of a process group, not some of them."""
ROWS = ("reduce_scatter", "scatter")
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SMALL = [torch.int8, torch.uint8]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, *SMALL]
OF_GLOO = [*FLOATS, torch.int64, torch.int32, *SMALL]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (4, 4, 3), (PIECE // 2 + 3,)]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective among some of the ranks."""

    collective: str
    name: str
    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: str
    root: int
    strided: bool

    def case(self):
        size = len(self.ranks)
        shape = (size, *self.shape) if self.collective in ROWS else self.shape
        inputs = tuple(random_tensor(rank, shape, self.dtype) for rank in range(size))
        return Case(inputs=inputs, root=self.root, op=self.op, strided=self.strided)


@st.composite
def calls(draw, algorithms=ALGORITHMS):
    collective, name = draw(st.sampled_from(algorithms))
    least = 2 if name == "shared_memory" else 1
    ranks = tuple(draw(st.permutations(range(ALL)))[: draw(st.integers(least, ALL))])
    op, dtype = draw(st.sampled_from(OPS)), draw(st.sampled_from(DTYPES))
    if (op == "mean" and not dtype.is_floating_point) or (op == "product" and dtype in SMALL):
        op = "max"  # a mean of integers is none, and products of eight do not fit
    return Call(
        collective=collective,
        name=name,
        ranks=ranks,
        shape=draw(st.sampled_from(SHAPES)),
        dtype=dtype,
        op=op,
        root=draw(st.integers(0, len(ranks) - 1)),
        strided=draw(st.booleans()),
    )


def performed(world, call):
    """Return a rank's result of a call; None if it does not take part."""
    if world.place.rank not in call.ranks:
        return None
    group = world if call.name in WHOLE else Subgroup(world, call.ranks)
    if call.name == "shared_memory":
        group = on_one_host(group)
        assert isinstance(group, OneHostWorld)
    case, (_, algorithms, arguments) = call.case(), KIT[call.collective]
    tensor = case.input(group.place.rank)
    returned = algorithms[call.name](group, tensor, *(getattr(call, name) for name in arguments))
    return Result(tensor=tensor, returned=returned, sent=0)


def problems(processes, call, size=ALL):
    found = processes.run(performed, size, call)
    judged, _, _ = KIT[call.collective]
    return list(judged(call.case(), [found[rank] for rank in call.ranks]))


@given(call=calls([one for one in ALGORITHMS if one[1] not in WHOLE]))
@settings(max_examples=80)
def test_any_call_among_any_ranks_is_correct(processes, call):
    assert problems(processes, call) == []


@pytest.mark.parametrize("name", [name for name in ALL_REDUCE if name != "native"])
def test_all_reduce_among_three_processes_is_correct(processes, name):
    size = 3
    call = Call(
        collective="all_reduce",
        name=name,
        ranks=tuple(range(size)),
        shape=(1001,),
        dtype=torch.bfloat16,
        op="mean",
        root=0,
        strided=False,
    )
    assert problems(processes, call, size if name in WHOLE else ALL) == []


@given(
    collective=st.sampled_from([one for one, name in ALGORITHMS if name == "native"]),
    dtype=st.sampled_from(OF_GLOO),
    call=calls(),
)
@settings(max_examples=20)
def test_collectives_of_the_back_end_among_all_ranks_are_correct(processes, collective, dtype, call):
    op = "max" if dtype in SMALL or (call.op == "mean" and not dtype.is_floating_point) else call.op
    fields = {"collective": collective, "name": "native", "ranks": tuple(range(ALL)), "root": call.root}
    call = Call(**{**vars(call), **fields, "dtype": dtype, "op": op})

    assert problems(processes, call) == []


def of_odd_kinds(world):
    """Return what rank 1's tensors are on each rank, and the sums of lazy conjugates."""
    rank = world.place.rank
    tokens, conjugate = torch.full((3,), rank, dtype=torch.uint16), torch.tensor([1 + 2j, rank]).conj()
    gathered = [every[1].tolist() for every in map(world.all_gather, (tokens, conjugate))]
    world.broadcast(tokens, src=1)
    if rank == 1:
        world.send(conjugate, dst=0)
    else:
        world.recv(received := torch.empty_like(conjugate), src=1)
        assert received.tolist() == [1 - 2j, 1]
    world.all_reduce_later(conjugate).wait()
    return gathered, tokens.tolist(), conjugate.tolist()


def test_the_back_end_moves_types_that_it_cannot_reduce_and_lazy_conjugates(processes):
    assert processes.run(of_odd_kinds, 2) == [([[1] * 3, [1 - 2j, 1]], [1] * 3, [2 - 4j, 1])] * 2
