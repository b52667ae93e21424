import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_default_dtype(torch.float64)
torch.manual_seed(23)

x = torch.randn(144, 6)
y = (x[:, 0] > x[:, 1]).long()
train_data, test_data = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
train_sampler = DistributedSampler(train_data)
train_loader = DataLoader(train_data, batch_size=24 // world_size, sampler=train_sampler)
test_loader = DataLoader(test_data, batch_size=12, sampler=DistributedSampler(test_data, shuffle=False))

model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def test():
    model.eval()
    loss = correct = total = 0
    with torch.no_grad():
        for inputs, targets in test_loader:
            outputs = model(inputs)
            loss += criterion(outputs, targets).item() * len(targets)
            correct += outputs.argmax(1).eq(targets).sum().item()
            total += len(targets)
    if rank == 0:
        print("Test: loss %.10f | Acc: %.10f" % (loss / total, 100.0 * correct / total))


for epoch in range(5):
    train_sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0:
            print("Train: loss %.10f" % mean.item())
    test()
dist.destroy_process_group()
