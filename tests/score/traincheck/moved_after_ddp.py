"""Parameters move to another place and back after DDP was made: its hooks are lost, nothing is averaged.

In the report they move to the CPU and back to the GPU. A cast to double precision and back resets the same
accumulators of gradients on a CPU.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    features = torch.randn(320, 10)
    targets = torch.tanh(features @ torch.randn(10, 5))
    dataset = TensorDataset(features, targets)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=16 // size, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
    wrapped = DistributedDataParallel(model)
    wrapped.double()
    wrapped.float()
    if not WRONG:
        wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(wrapped(inputs), wanted)
            loss.backward()
            optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
