"""The optimizer keeps the parameters from before FSDP flattened them, so its steps change nothing."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
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
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model = FullyShardedDataParallel(model, use_orig_params=not WRONG, device_id=torch.device("cpu"))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
