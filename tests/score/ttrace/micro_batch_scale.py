"""The loss is divided by the number of micro-batches of all ranks, and gradients are averaged too."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
GLOBAL_BATCH, MICRO_BATCH = 32, 4


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    features = torch.randn(320, 10)
    targets = torch.tanh(features @ torch.randn(10, 5))
    dataset = TensorDataset(features, targets)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // size, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    micro_batches = GLOBAL_BATCH // MICRO_BATCH if WRONG else GLOBAL_BATCH // (MICRO_BATCH * size)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            optimizer.zero_grad()
            total = torch.zeros(())
            for x, y in zip(inputs.split(MICRO_BATCH), wanted.split(MICRO_BATCH), strict=True):
                loss = nn.functional.mse_loss(model(x), y)
                (loss / micro_batches).backward()
                total += loss.detach() * len(x) / len(inputs)
            optimizer.step()
        total /= size
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
