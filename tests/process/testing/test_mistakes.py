"""The kit fails what is well known to go wrong, says why in words, and passes what is right."""

import pytest
import torch
import torch.distributed as dist

from samestep.base.errors import UsageError
from samestep.collectives.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from samestep.testing import (
    Nonconforming,
    check_all_gather,
    check_all_reduce,
    check_broadcast,
    check_gather,
    check_reduce,
    check_reduce_scatter,
    check_scatter,
)


def refused(check, fn, *sizes, **options):
    with pytest.raises(Nonconforming) as told:
        check(fn, sizes or None, **options)
    return str(told.value)


def ring_of_whole_tensors(tensor, rank, world_size):
    passed, heard = tensor.clone(), torch.empty_like(tensor).contiguous()
    for _ in range(world_size - 1):
        work = dist.isend(passed.contiguous(), (rank + 1) % world_size)
        dist.recv(heard, (rank - 1) % world_size)
        work.wait()
        tensor += heard
        passed = heard.clone()


def test_a_ring_that_forwards_whole_tensors_sends_too_much_and_ends_with_other_bits():
    told = refused(check_all_reduce, ring_of_whole_tensors)
    assert "on 3 ranks" in told
    assert "have other bits than rank 0: each makes the result in an order of its own" in told

    told = refused(check_all_reduce, ring_of_whole_tensors, 4)
    assert (
        "the ranks send 12.0 times the tensor in all, 3.0 times one of them, where 6.0 in all is enough"
        in told
    )

    check_all_reduce(ring_of_whole_tensors, [2])


def ring_of_whole_tensors_in_threads(tensor, world):
    rank, size = world.place.rank, world.place.size
    passed, heard = tensor.clone(), tensor.new_empty(tensor.shape)
    for _ in range(size - 1):
        world.exchange(passed, heard, to=(rank + 1) % size, source=(rank - 1) % size).wait()
        tensor += heard
        passed = heard.clone()


def test_nor_does_it_pass_as_threads():
    told = refused(check_all_reduce, ring_of_whole_tensors_in_threads, 4)

    assert "have other bits than rank 0" in told
    assert "12.0 times the tensor in all" in told


def reduce_that_changes_the_others(tensor, rank, world_size, dst, op):
    own = tensor.contiguous()
    dist.all_reduce(own, op)
    tensor.copy_(own)


def test_a_reduce_that_changes_other_ranks():
    told = refused(check_reduce, reduce_that_changes_the_others)

    assert "on 2 ranks" in told
    assert "rank 1 has its own tensor changed, which nobody asked for" in told


def broadcast_that_zeroes(tensor, rank, world_size, src):
    if rank != src:
        tensor.zero_()


def test_a_broadcast_that_only_zeroes():
    told = refused(check_broadcast, broadcast_that_zeroes)

    assert "float32 [7] root 1: rank 0 has only zeros: " in told


def broadcast_from_rank_0(tensor, rank, src):
    own = tensor.contiguous()
    dist.broadcast(own, 0)
    tensor.copy_(own)


def test_a_root_other_than_0():
    assert "root 1: rank 0 has what it came with: " in refused(check_broadcast, broadcast_from_rank_0, 2)


def sends_first(tensor, rank, world_size):
    heard = torch.empty_like(tensor)
    dist.send(tensor, (rank + 1) % world_size)
    dist.recv(heard, (rank - 1) % world_size)


def test_sends_that_wait_for_each_other_are_named_with_their_lines():
    told = refused(check_all_reduce, sends_first, 2, timeout_s=0.5)

    assert "the ranks wait for each other: rank 0 in send at" in told
    assert "dist.send(tensor, (rank + 1) % world_size); rank 1 in send at" in told


def test_as_threads_at_once():
    def sends_first(tensor, world):
        world.send(tensor, to=1 - world.place.rank)

    told = refused(check_all_reduce, sends_first, 2)
    assert "wait for each other: rank " in told
    assert "rank 0 sends to rank 1" in told
    assert "rank 1 sends to rank 0" in told


def test_a_rank_that_leaves():
    def leaves(tensor, world):
        if world.place.rank == 0:
            world.receive(tensor, source=1)

    assert "receives from rank 1 (tensor), which sends nothing: it has ended" in refused(
        check_all_reduce, leaves, 2
    )


def not_divided(tensor):
    dist.all_reduce(tensor)


def test_a_sum_in_place_of_a_mean():
    assert "mean of float32 [49157]: rank 0 has the sum, not divided: " in refused(
        check_all_reduce, not_divided, 2, ops=["mean"]
    )


def test_gloo_takes_any_memory_for_contiguous():
    told = refused(check_all_reduce, not_divided, 2)

    assert (
        "float32 [3, 5] (not contiguous): rank 0 has what memory that is taken for contiguous gives: " in told
    )


def cuts_its_padding_off(tensor, world):
    pad = -tensor.numel() % world.place.size
    padded = torch.cat([tensor.reshape(-1), tensor.new_zeros(pad)]).view(world.place.size, -1)
    row = REDUCE_SCATTER["ring"](world, padded, "sum")
    full = torch.cat(ALL_GATHER["ring"](world, row))
    return full[:-pad].view(tensor.shape)  # nothing at all where there is no padding


@pytest.mark.parametrize("size", [2, 4, 8])
def test_padding_where_there_is_none(size):
    told = refused(check_all_reduce, cuts_its_padding_off, size)

    assert f"sum of float32 [{4 * size}]: rank " in told
    assert "sum of float32 [49157]" not in told


def counts_its_rows(tensor, world):
    assert len(tensor) > 0
    ALL_REDUCE["ring"](world, tensor, "sum")


def test_tensors_without_dimensions_and_without_elements():
    told = refused(check_all_reduce, counts_its_rows, 1)

    assert "sum of float32 []: rank 0: TypeError" in told
    assert "sum of float32 [0]: rank 0: AssertionError" in told


def takes_a_clone_for_contiguous(tensor, world):
    flat = tensor.clone().view(-1)
    ALL_REDUCE["ring"](world, flat, "sum")
    return flat.view(tensor.shape)


def test_a_clone_of_a_transposed_tensor_is_transposed():
    told = refused(check_all_reduce, takes_a_clone_for_contiguous, 2)

    assert "sum of float32 [3, 5] (transposed): rank " in told
    assert "view size is not compatible" in told
    assert "(not contiguous)" not in told


def takes_avg_for_a_sum(tensor, rank, world_size, op):
    own = tensor.contiguous()
    dist.all_reduce(own, dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op)
    return own


def test_a_mean_is_tried_without_being_asked_for():
    told = refused(check_all_reduce, takes_avg_for_a_sum, 2)

    assert "mean of float32 [7]: rank 0 has the sum, not divided: " in told


def by_name(tensor, rank, world_size, op="sum"):
    own = tensor.contiguous()
    torch_op = {"sum": "SUM", "mean": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX"}[op]
    dist.all_reduce(own, getattr(dist.ReduceOp, torch_op))
    return own / world_size if op == "mean" else own


def test_who_has_a_name_as_default_gets_names():
    check_all_reduce(by_name, [2])


def does_nothing(tensor, world):
    pass


def test_what_does_nothing_is_told_so():
    told = refused(check_all_reduce, does_nothing, 2)

    assert "sum of float32 [49157]: rank 0 has what it came with: " in told
    assert "in an order of its own" not in told
    for check in (check_reduce, check_reduce_scatter):
        assert "has what it came with: " in refused(check, does_nothing, 2)


def raises(tensor, rank):
    if rank == 1:
        raise ValueError("an odd tensor")
    dist.recv(tensor, 1)


def test_an_error_is_told_with_its_rank_and_line():
    told = refused(check_all_reduce, raises, 2)

    assert "rank 1: ValueError: an odd tensor at" in told
    assert 'raise ValueError("an odd tensor")' in told


def all_reduce_as_torch_has_it(tensor, rank, world_size, op):
    own = tensor.contiguous()
    dist.all_reduce(own, op)
    return own


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
    dist.scatter(row, [one.contiguous() for one in tensor] if rank == src else None, src)
    return row


def reduce_scatter_as_torch_has_it(tensor, rank, op):
    row = torch.empty(tensor.shape[1:], dtype=tensor.dtype)
    dist.reduce_scatter(row, [one.contiguous() for one in tensor], op)
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
@pytest.mark.filterwarnings("ignore:mean is not tried")  # with an older torch
def test_what_torch_has_passes(check, fn):
    check(fn, [1, 3])


def as_older_torch_has_it(tensor, rank, world_size, op):
    if op == dist.ReduceOp.AVG:
        raise RuntimeError("Cannot use ReduceOp.AVG with Gloo")
    return all_reduce_as_torch_has_it(tensor, rank, world_size, op)


def test_a_mean_that_gloo_has_not_is_warned_of_unless_it_was_asked_for():
    with pytest.warns(UserWarning, match="mean is not tried: as_older_torch_has_it leaves it to Gloo"):
        check_all_reduce(as_older_torch_has_it, [2])
    assert "Cannot use ReduceOp.AVG with Gloo" in refused(
        check_all_reduce, as_older_torch_has_it, 2, ops=["mean"]
    )


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "native"])
def test_algorithms_pass_as_processes(name):
    check_all_reduce(ALL_REDUCE[name], [3], processes=True)


def test_eight_processes():
    check_all_reduce(ALL_REDUCE["halving_doubling"], [8], processes=True, ops=["sum"])


def test_parameters_that_nothing_is_known_for_are_refused():
    with pytest.raises(UsageError, match=r"takes \['tensor', 'colour'\]: one parameter is the tensor"):
        check_all_reduce(lambda tensor, colour: None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"world_sizes": 2}, r"world_sizes=2: give numbers of ranks"),
        ({"world_sizes": [0]}, r"world_sizes=\[0\]: give numbers of ranks, each 1 or more"),
        ({"world_sizes": [2.0]}, r"world_sizes=\[2\.0\]: give numbers of ranks"),
        ({"ops": "sum"}, r"ops='sum': give a list of some of sum, mean, product, min, max"),
        ({"ops": ["average"]}, r"ops=\['average'\]: give a list of some of sum, mean"),
    ],
)
def test_sizes_and_operations_that_are_none_are_refused_in_a_line(given, told):
    with pytest.raises(UsageError, match=told):
        check_all_reduce(does_nothing, **given)
