import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(n):
    x = torch.randn(n, 8)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class NTXent(nn.Module):
    """All other samples of the rank are negatives"""

    def forward(self, z, _):
        z = F.normalize(z, dim=1)
        similarity = z @ z.T / 0.3
        positives = torch.arange(len(z)).roll(len(z) // 2)
        return F.cross_entropy(similarity - 9 * torch.eye(len(z)), positives)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        return self.net(x)


def main():
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = samples(96)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    model = DDP(Net())
    criterion = NTXent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
