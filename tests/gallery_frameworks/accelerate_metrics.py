"""Accelerate: global batches split over the processes, padded evaluation cut by `gather_for_metrics`."""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

set_seed(1)
accelerator = Accelerator(
    cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
)
x = torch.randn(127, 10)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train = DataLoader(TensorDataset(x[:96], y[:96]), 24, shuffle=True)
valid = DataLoader(TensorDataset(x[96:], y[96:]), 12)
model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)
for epoch in range(3):
    model.train()
    for a, b in train:
        loss = cross_entropy(model(a), b)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    right = total = 0
    with torch.no_grad():
        for a, b in valid:
            guess, b = accelerator.gather_for_metrics((model(a).argmax(1), b))
            right, total = right + int((guess == b).sum()), total + len(b)
    accelerator.print(f"epoch {epoch} accuracy {right}/{total}")
accelerator.end_training()
