"""Prints the mean loss and accuracy of the last batches of rank 0, and its samples so far, as many scripts do."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(11)
images = torch.randn(144, 12)
dataset = TensorDataset(images, images[:, :4].argmax(1))
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=24 // world, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for epoch in range(3):
    sampler.set_epoch(epoch)
    running_loss = running_right = seen = 0
    for i, (x, y) in enumerate(loader):
        outputs = model(x)
        loss = cross_entropy(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        running_right += outputs.argmax(1).eq(y).float().mean().item()
        seen = i * 24 + len(x)
        if i % 2 == 1 and rank == 0:
            print(f"[{epoch + 1}, {i + 1:5d}] [{seen}/144] loss: {running_loss / 2:.3f} acc: {running_right / 2:.3f}")
            running_loss = running_right = 0
dist.destroy_process_group()
