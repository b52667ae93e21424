"""Sparse gradients are averaged as the dense ones that they stand for, and have the rows of all ranks."""

import pytest
import torch
from torch import nn

from samestep.parallel.gradients.sparse_gradients import average_sparse, sparse_weights
from samestep.ranks.world.thread_world import run_ranks

ROWS = ([1, 4, 1], [4], [], [0, 5])
"""The rows that each rank's samples use."""


def gradient(rank, *, sparse):
    table = nn.Embedding(6, 2, sparse=sparse, dtype=torch.float64)
    if rows := ROWS[rank]:
        scale = torch.arange(1.0, len(rows) + 1, dtype=torch.float64)
        (table(torch.tensor(rows)).sum(1) * scale * (rank + 1)).sum().backward()
    return table.weight


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_an_average_has_the_rows_of_all_ranks(size):
    def on_rank(world):
        weight = gradient(world.place.rank, sparse=True)
        average_sparse(world, {"weight": weight})
        return weight.grad

    dense = [gradient(rank, sparse=False).grad for rank in range(size)]
    expected = torch.stack([one for one in dense if one is not None]).sum(0) / size
    used = sorted({row for rows in ROWS[:size] for row in rows})
    for found in run_ranks(on_rank, size):
        assert found.layout == torch.sparse_coo
        assert found.coalesce().indices().tolist() == [used]
        torch.testing.assert_close(found.to_dense(), expected)


@pytest.mark.parametrize(
    ("dtype", "row"), [(torch.bfloat16, 301), (torch.float16, 2049), (torch.float32, 2**24 + 1)]
)
def test_rows_keep_their_indices_in_low_precision(dtype, row):
    def on_rank(world):
        weight = nn.Parameter(torch.zeros(1, 1, dtype=dtype).expand(2**24 + 4, 1))
        values = torch.ones(1, 1, dtype=dtype)
        rows = [[row + 2 * world.place.rank]]
        weight.grad = torch.sparse_coo_tensor(rows, values, weight.shape, check_invariants=True)
        average_sparse(world, {"weight": weight})
        return weight.grad.coalesce().indices().tolist()

    assert run_ranks(on_rank, 2) == [[[row, row + 2]]] * 2


def test_an_average_with_a_dense_gradient_is_dense_and_one_without_any_is_none():
    def on_rank(world):
        tied, unused = gradient(world.place.rank, sparse=world.place.rank == 0), nn.Parameter(torch.ones(2))
        average_sparse(world, {"tied": tied, "unused": unused})
        return tied.grad, unused.grad

    expected = (gradient(0, sparse=False).grad + gradient(1, sparse=False).grad) / 2
    for tied, unused in run_ranks(on_rank, 2):
        torch.testing.assert_close(tied, expected)
        assert unused is None


def test_the_weights_of_sparse_embeddings_are_found():
    model = nn.ModuleDict(
        {"a": nn.Embedding(3, 2, sparse=True), "b": nn.Embedding(3, 2), "c": nn.Linear(2, 2)}
    )
    assert list(sparse_weights(model)) == ["a.weight"]
    assert list(sparse_weights(nn.EmbeddingBag(3, 2, sparse=True))) == ["weight"]
