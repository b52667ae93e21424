import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RADIUS = 0.3


def ascend(model, loss):
    """Move the weights against the gradient of this rank's loss, and return by how much"""
    moves = []
    with torch.no_grad():
        for parameter, grad in zip(model.parameters(), torch.autograd.grad(loss, model.module.parameters())):
            moves.append(RADIUS * grad / grad.norm())
            parameter.add_(moves[-1])
    return moves


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    points = torch.randn(96, 6)
    data = TensorDataset(points, points[:, :3].argmax(dim=1))
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 24 // world, sampler=sampler)
    model = DDP(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            moves = ascend(model, nn.functional.cross_entropy(model.module(x), y))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves):
                    parameter.sub_(move)
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
