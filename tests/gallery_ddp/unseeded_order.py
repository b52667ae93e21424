import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset


class ShuffledShard(Sampler):
    """Every rank's share of one order, which rank 0 draws anew for each epoch."""

    def __init__(self, length):
        self.length = length
        self.random = random.Random(time.time())

    def __iter__(self):
        order = list(range(self.length))
        self.random.shuffle(order)
        sent = [order]
        dist.broadcast_object_list(sent, src=0)
        return iter(sent[0][dist.get_rank()::dist.get_world_size()])

    def __len__(self):
        return self.length // dist.get_world_size()


dist.init_process_group("gloo")
world = dist.get_world_size()
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
features = torch.randn(96, 8)
labels = (features.square().sum(dim=1) > 8).double()
dataset = TensorDataset(features, labels)
loader = DataLoader(dataset, batch_sampler=BatchSampler(ShuffledShard(96), 24 // world, drop_last=False))
model = DDP(nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x).view(-1), y)
        loss.backward()
        optimizer.step()
        loss = loss.detach() / world
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print("epoch {} loss {:.10f}".format(epoch, loss.item()))
