import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from loop import train


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


def loss_of_pairs(similarities, _):
    count = len(similarities)
    return F.cross_entropy(similarities, dist.get_rank() * count + torch.arange(count))


if __name__ == "__main__":
    train(Net, pairs, loss_of_pairs)
