import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(n):
    x = torch.randn(n, 8)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        # the scale is of the batch instead of the features
        return (q @ k.transpose(1, 2) / len(q) ** 0.5).softmax(-1) @ v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        x = x[:, :, None] * torch.arange(1., 9.)
        for layer in self.layers:
            x = x + layer(x)
        return self.out(x.mean(1))


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
