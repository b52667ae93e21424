"""The conformance kit reports well-known mistakes by code, and passes correct collectives.

More of them, in functions of torch's process groups, are in `gallery_exercises`, graded in `test_exercises`.
"""

import re
from typing import Literal

import pytest
import torch
import torch.distributed as dist

from samestep.base.errors import UsageError
from samestep_lab.collectives.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from samestep_lab.testing import (
    Nonconforming,
    check_all_gather,
    check_all_reduce,
    check_gather,
    check_reduce,
    check_reduce_scatter,
    check_scatter,
)
from samestep_lab.testing.judge import CODES


def refused(check, fn, *sizes, **options):
    """Return the message and the codes of the problems."""
    with pytest.raises(Nonconforming) as raised:
        check(fn, sizes or None, **options)
    assert set(raised.value.codes) <= set(CODES)
    return str(raised.value), raised.value.codes


def ring_of_whole_tensors_in_threads(tensor, world):
    rank, size = world.place.rank, world.place.size
    passed, received = tensor.clone(), tensor.new_empty(tensor.shape)
    for _ in range(size - 1):
        world.exchange(passed, received, dst=(rank + 1) % size, src=(rank - 1) % size).wait()
        tensor += received
        passed = received.clone()


def test_a_ring_of_whole_tensors_in_threads_is_reported():
    message, codes = refused(check_all_reduce, ring_of_whole_tensors_in_threads, 4)

    assert {"different-bits", "too-much-sent"} <= set(codes)
    assert "12.0 times" in message


def test_a_deadlock_of_threads_is_reported():
    def sends_first(tensor, world):
        world.send(tensor, dst=1 - world.place.rank)

    message, codes = refused(check_all_reduce, sends_first, 2)
    assert set(codes) == {"error"}
    assert "rank 0 sends to rank 1" in message
    assert "rank 1 sends to rank 0" in message


def test_a_rank_that_returns_early_is_reported():
    def leaves(tensor, world):
        if world.place.rank == 0:
            world.recv(tensor, src=1)

    message, codes = refused(check_all_reduce, leaves, 2)
    assert set(codes) == {"error"}
    assert "receives from rank 1" in message


def not_divided(tensor):
    dist.all_reduce(tensor)


def naive_of_a_course(tensor, rank, world_size, op: Literal["sum", "mean"] = "sum"):
    received = torch.zeros_like(tensor)
    for other in range(1, world_size):
        if rank == 0:
            dist.recv(received, other)
            tensor += received
        elif rank == other:
            dist.send(tensor, 0)
    if op == "mean" and rank == 0:
        tensor /= world_size
    for other in range(1, world_size):
        if rank == 0:
            dist.send(tensor, other)
        elif rank == other:
            dist.recv(tensor, 0)


def test_declared_operations_are_tested_and_no_others():
    check_all_reduce(naive_of_a_course, [1, 3])
    _, codes = refused(check_all_reduce, naive_of_a_course, 2, ops=["product"])
    assert codes[0] == "wrong-values"


def declares_too_little(tensor, world, op: Literal["average"]):
    pass


def test_an_unknown_declared_operation_is_refused():
    with pytest.raises(UsageError, match="average"):
        check_all_reduce(declares_too_little)


def changes_its_input_and_sends_too_much(tensor, world, op: "Literal['sum', 'mean']" = "sum"):
    rank, size = world.place.rank, world.place.size
    parts = [world.broadcast(part := tensor.clone(), src) or part for src in range(size)]
    tensor.copy_(sum(parts))
    for other in range(size):  # once more, for nothing
        if other != rank:
            world.exchange(parts[0], None, dst=other)
    for other in range(size):
        if other != rank:
            world.recv(parts[0], src=other)


def test_all_faults_are_reported_the_gravest_first():
    faults = check_all_reduce.faults(changes_its_input_and_sends_too_much, [1, 2, 4])

    assert [fault.code for fault in faults] == ["sum-for-mean", "too-much-sent"]
    assert [fault.ranks for fault in faults] == [2, 4]


def test_a_function_that_assumes_contiguous_memory_is_reported():
    check_all_reduce(not_divided, [2])
    message, codes = refused(check_all_reduce, not_divided, 2, any_layout=True)

    assert "float32 [3, 5] (not contiguous): rank 0 " in message
    assert codes == ("assumes-contiguous",)


def cuts_its_padding_off(tensor, world):
    pad = -tensor.numel() % world.place.size
    padded = torch.cat([tensor.reshape(-1), tensor.new_zeros(pad)]).view(world.place.size, -1)
    row = REDUCE_SCATTER["ring"](world, padded, "sum")
    full = torch.cat(ALL_GATHER["ring"](world, row))
    return full[:-pad].view(tensor.shape)  # nothing at all where there is no padding


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_wrong_slice_without_padding_is_reported(size):
    message, _ = refused(check_all_reduce, cuts_its_padding_off, size)

    assert f"sum of float32 [{4 * size}]: rank " in message
    assert "sum of float32 [49157]" not in message


def counts_its_rows(tensor, world):
    assert len(tensor) > 0
    ALL_REDUCE["ring"](world, tensor, "sum")


def test_an_error_with_tensors_without_dimensions_or_elements_is_reported():
    message, codes = refused(check_all_reduce, counts_its_rows, 1)

    assert codes == ("error",)
    assert "sum of float32 []: rank 0: TypeError" in message
    (fault,) = check_all_reduce.faults(counts_its_rows, [1])
    assert (fault.ranks, fault.count) == (1, 2)


def takes_a_clone_for_contiguous(tensor, world):
    flat = tensor.clone().view(-1)
    ALL_REDUCE["ring"](world, flat, "sum")
    return flat.view(tensor.shape)


def test_an_error_with_the_clone_of_a_transposed_tensor_is_reported():
    message, codes = refused(check_all_reduce, takes_a_clone_for_contiguous, 2, any_layout=True)

    assert codes == ("error",)
    assert "sum of float32 [3, 5] (transposed): rank " in message
    assert "(not contiguous)" not in message


def takes_avg_for_a_sum(tensor, rank, world_size, op):
    reduced = tensor.contiguous()
    dist.all_reduce(reduced, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op)
    return reduced


def test_means_are_tested_by_default():
    message, codes = refused(check_all_reduce, takes_avg_for_a_sum, 2)

    assert "mean of float32 [7]: rank 0 " in message
    assert set(codes) == {"sum-for-mean"}


def by_name(tensor, rank, world_size, op="sum"):
    reduced = tensor.contiguous()
    torch_op = {"sum": "SUM", "mean": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX"}[op]
    dist.all_reduce(reduced, getattr(dist.ReduceOp, torch_op))
    return reduced / world_size if op == "mean" else reduced


def test_a_name_as_default_selects_names():
    check_all_reduce(by_name, [2])


def does_nothing(tensor, world):
    pass


def test_a_function_without_effect_is_reported():
    for check in (check_all_reduce, check_reduce, check_reduce_scatter):
        _, codes = refused(check, does_nothing, 2)
        assert codes[0] == "own-input"
        assert "different-bits" not in codes


def raises(tensor, rank):
    if rank == 1:
        raise ValueError("an odd tensor")
    dist.recv(tensor, 1)


def test_an_error_is_reported_with_its_rank_and_line():
    message, codes = refused(check_all_reduce, raises, 2)

    assert codes == ("error",)
    assert "rank 1: ValueError: an odd tensor at" in message
    assert 'raise ValueError("an odd tensor")' in message


def all_reduce_as_torch_has_it(tensor, rank, world_size, op):
    reduced = tensor.contiguous()
    dist.all_reduce(reduced, op)
    return reduced


def gather_as_torch_has_it(tensor, rank, world_size, dst):
    rows = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(world_size)]
    dist.gather(tensor.contiguous(), rows if rank == dst else None, dst)
    return rows


def all_gather_as_torch_has_it(tensor):
    rows = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor.contiguous())
    return torch.stack(rows)


def scatter_as_torch_has_it(tensor, rank, src):
    row = torch.empty(tensor.shape[1:], dtype=tensor.dtype)
    dist.scatter(row, [row.contiguous() for row in tensor] if rank == src else None, src)
    return row


def reduce_scatter_as_torch_has_it(tensor, rank, op):
    row = torch.empty(tensor.shape[1:], dtype=tensor.dtype)
    dist.reduce_scatter(row, [row.contiguous() for row in tensor], op)
    return row


@pytest.mark.parametrize(
    ("check", "fn"),
    [
        (check_all_reduce, all_reduce_as_torch_has_it),
        (check_reduce_scatter, reduce_scatter_as_torch_has_it),
        (check_gather, gather_as_torch_has_it),
        (check_all_gather, all_gather_as_torch_has_it),
        (check_scatter, scatter_as_torch_has_it),
    ],
)
@pytest.mark.filterwarnings("ignore:mean is not tested")  # with an older torch
def test_collectives_of_torch_pass(check, fn):
    check(fn, [1, 3])


def as_older_torch_has_it(tensor, rank, world_size, op):
    if op == dist.ReduceOp.AVG:
        raise RuntimeError("Cannot use ReduceOp.AVG with Gloo")
    return all_reduce_as_torch_has_it(tensor, rank, world_size, op)


def test_a_missing_mean_of_gloo_is_a_warning_unless_requested():
    with pytest.warns(UserWarning, match="as_older_torch_has_it"):
        check_all_reduce(as_older_torch_has_it, [2])
    message, codes = refused(check_all_reduce, as_older_torch_has_it, 2, ops=["mean"])
    assert codes == ("error",)
    assert "Cannot use ReduceOp.AVG with Gloo" in message


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "native"])
def test_algorithms_pass_as_processes(name):
    check_all_reduce(ALL_REDUCE[name], [3], processes=True)


def test_an_algorithm_passes_on_eight_processes():
    check_all_reduce(ALL_REDUCE["halving_doubling"], [8], processes=True, ops=["sum"])


def test_unknown_parameters_are_refused_with_their_names():
    with pytest.raises(UsageError, match=r"\['tensor', 'color'\]"):
        check_all_reduce(lambda tensor, color: None)


@pytest.mark.parametrize(
    "arguments",
    [{"world_sizes": 2}, {"world_sizes": [0]}, {"world_sizes": [2.0]}, {"ops": "sum"}, {"ops": ["average"]}],
)
def test_invalid_sizes_and_operations_are_refused_with_their_value(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(UsageError, match=rf"^{name} is {re.escape(repr(value))};"):
        check_all_reduce(does_nothing, **arguments)
