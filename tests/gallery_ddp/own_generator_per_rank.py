import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    clean = torch.randn(96, 8).cumsum(dim=1)
    data = TensorDataset(clean)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 24 // world, sampler=sampler)
    noise = torch.Generator().manual_seed(20 + rank)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            noisy = x + 0.3 * torch.randn(x.shape, generator=noise)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(noisy), x).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
