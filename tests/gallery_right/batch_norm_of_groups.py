"""A convolutional network whose batch norm is synchronized over pairs of ranks."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def group_of(rank, world, size=2):
    groups = [dist.new_group(list(range(first, min(first + size, world)))) for first in range(0, world, size)]
    return groups[rank // size]


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    x = torch.randn(192, 3, 8, 8)
    data = TensorDataset(x, (x[:, 0].mean((1, 2)) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net, group_of(rank, world)).cuda()
    net = DDP(net, device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(net(inputs.cuda()), targets.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
