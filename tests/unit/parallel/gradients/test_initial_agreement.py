"""Embeddings with sparse gradients are recognized."""

from torch import nn

from samestep.parallel.gradients.initial_agreement import sparse_weights


def test_the_weights_of_sparse_embeddings_are_found():
    model = nn.ModuleDict(
        {"a": nn.Embedding(3, 2, sparse=True), "b": nn.Embedding(3, 2), "c": nn.Linear(2, 2)}
    )
    assert list(sparse_weights(model)) == ["a.weight"]
    assert list(sparse_weights(nn.EmbeddingBag(3, 2, sparse=True))) == ["weight"]
