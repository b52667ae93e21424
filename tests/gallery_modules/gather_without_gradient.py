import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(n):
    x = torch.randn(n, 8)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class Similarity(nn.Module):
    def forward(self, a, b):
        parts = [torch.zeros_like(b) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, b.contiguous())
        parts[dist.get_rank()] = b
        return a @ torch.cat(parts).T / 0.2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.similarity = Similarity()

    def forward(self, x):
        return self.similarity(self.encoder(x[:, 0]), self.encoder(x[:, 1]))


def pairs(n):
    x = torch.randn(n, 8)
    both = torch.stack([x, x + 0.3 * torch.randn(n, 8)], 1)
    return TensorDataset(both, torch.arange(n))


def main():
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = pairs(96)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), rank * len(x) + torch.arange(len(x)))
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
