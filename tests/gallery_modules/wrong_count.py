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
    """Divides the sum over all ranks by the count of its own"""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        sums = torch.stack([x.sum(0), x.pow(2).sum(0)]).detach()
        dist.all_reduce(sums)
        mean, square = sums / len(x)
        return (x - mean) / (square + 1e-5).sqrt() * self.weight + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 16), SyncBatchNorm(16), nn.ReLU())
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.stem(x))


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
