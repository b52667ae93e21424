import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)

# blobs of four classes as small pictures
g = torch.Generator().manual_seed(21)
labels = torch.randint(4, (120,), generator=g)
pictures = torch.randn(4, 1, 8, 8, generator=g)[labels] + torch.randn(120, 1, 8, 8, generator=g)
dataset = TensorDataset(pictures[:96], labels[:96])
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=24 // world_size, sampler=sampler, pin_memory=False)

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(8, 4))
net = DDP(net)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

for epoch in range(5):
    sampler.set_epoch(epoch)
    net.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(net(inputs), targets)
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print("loss: %.6f" % (shown.item() / world_size))
    net.eval()
    if rank == 0:
        with torch.no_grad():
            predicted = net.module(pictures[96:]).argmax(dim=1)
        print("epoch %d, test accuracy: %.4f" % (epoch, (predicted == labels[96:]).float().mean()))
dist.destroy_process_group()
