"""ZeroRedundancyOptimizer under DDP with AdamW and a cosine schedule."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(3)
    images, labels = torch.randn(144, 1, 8, 8, generator=g), torch.randint(4, (144,), generator=g)
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)
    )
    model = DDP(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=18)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print("epoch", epoch, "last loss", round(total.item() / world, 4), "lr", scheduler.get_last_lr())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
