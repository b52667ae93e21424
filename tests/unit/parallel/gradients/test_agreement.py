"""The checksum of weights depends on all bits, names and types."""

import torch
from torch import nn

from samestep.parallel.gradients.agreement import sparse_weights, weights_sha256


def test_the_weights_of_sparse_embeddings_are_found():
    model = nn.ModuleDict(
        {"a": nn.Embedding(3, 2, sparse=True), "b": nn.Embedding(3, 2), "c": nn.Linear(2, 2)}
    )
    assert list(sparse_weights(model)) == ["a.weight"]
    assert list(sparse_weights(nn.EmbeddingBag(3, 2, sparse=True))) == ["weight"]


def test_the_checksum_depends_on_every_bit_name_and_dtype_but_not_on_the_order():
    state = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    digest = weights_sha256(state)

    assert weights_sha256(dict(reversed(state.items()))) == digest
    assert weights_sha256({**state, "a": torch.tensor([1.0, 2.0 + 2**-22])}) != digest
    assert weights_sha256({**state, "n": torch.tensor(3, dtype=torch.int32)}) != digest
    assert weights_sha256({"b": state["a"], "n": state["n"]}) != digest
    assert weights_sha256({"a": torch.tensor([1.0], dtype=torch.bfloat16)})
