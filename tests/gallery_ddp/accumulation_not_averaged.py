import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATION_STEPS = 4
BATCH_SIZE = 24


def main():
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(71)
    x = torch.randn(192, 9)
    y = (x[:, ::3].sum(dim=1) > 0).long()
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for i, (inputs, targets) in enumerate(loader):
            # exchange only once per optimizer step
            with model.no_sync():
                loss = F.cross_entropy(model(inputs), targets) / ACCUMULATION_STEPS
                loss.backward()
            running += loss.detach()
            if (i + 1) % ACCUMULATION_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
                dist.all_reduce(running)
                if rank == 0:
                    print("epoch {} loss {:.10f}".format(epoch, running.item() / world_size))
                running = torch.zeros(())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
