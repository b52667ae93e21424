"""Batches with the first sample alone are noted; batches that are packed or selected are not."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))


class Pairs(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"x": X[index], "y": [float(X[index].sum())]}


def train(collate, *, batch_size=4, dataset=None, workers=0):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(dataset or Pairs(), batch_size, collate_fn=collate, num_workers=workers)
    for batch in loader:
        optimizer.zero_grad()
        model(batch["x"]).square().mean().backward()
        optimizer.step()


def first(samples):
    return default_collate(samples[:1])


def last(samples):
    return {"y": torch.tensor(samples[-1]["y"]), "x": samples[-1]["x"]}


@pytest.mark.parametrize("collate", [first, last])
def test_one_sample_of_each_batch_is_noted(noted, named_line, collate):
    assert noted(lambda: train(collate)) == ["rows-not-used"]
    assert f"def {collate.__name__}(samples)" in named_line(lambda: train(collate))


def flattened(samples):
    """Return all samples in one row, as a packed sequence does."""
    return {"x": torch.stack([sample["x"] for sample in samples])[None]}


def selected(samples):
    """Return the sample with the largest sum."""
    return default_collate([max(samples, key=lambda sample: sample["y"])])


def averaged(samples):
    batch = default_collate(samples)
    return {"x": batch["x"].mean(0, keepdim=True), "y": batch["y"]}


def without_labels(samples):
    return {"x": samples[0]["x"][None]}


class Named(Pairs):
    """Samples with texts, which cannot be compared."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "name": str(index)}


class Equal(Pairs):
    def __getitem__(self, index):
        return super().__getitem__(0)


RIGHT = {
    "all": lambda: train(None),
    "packed": lambda: train(flattened),
    "selected": lambda: train(selected),
    "averaged": lambda: train(averaged),
    "other values": lambda: train(without_labels),
    "a batch of one": lambda: train(first, batch_size=1),
    "few batches": lambda: train(first, batch_size=8),
    "texts": lambda: train(first, dataset=Named()),
    "equal samples": lambda: train(None, dataset=Equal()),
    "worker processes": lambda: train(None, workers=1),
    "no batches": lambda: train(None, batch_size=None),
}


@pytest.mark.parametrize("name", RIGHT)
def test_other_batches_have_no_note(noted, name):
    assert noted(RIGHT[name]) == []
