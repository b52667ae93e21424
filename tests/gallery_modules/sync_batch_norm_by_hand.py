import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(n):
    x = torch.randn(n, 8)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class SyncBatchNorm(nn.Module):
    """Statistics over all ranks; their gradient stays on the rank"""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        mean, square = x.mean(0), x.pow(2).mean(0)
        others = torch.stack([mean, square]).detach()
        dist.all_reduce(others)
        others = others / dist.get_world_size()
        mean = mean + (others[0] - mean.detach())
        square = square + (others[1] - square.detach())
        x = (x - mean) / (square - mean.pow(2) + 1e-5).sqrt()
        return x * self.weight + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.norm = SyncBatchNorm(16)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.inp(x))))


def main():
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = samples(96)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
