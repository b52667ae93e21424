"""Batch norm takes its statistics over the shard of each rank, and those of rank 0 are evaluated and saved."""
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class SyncBatchNorm(nn.BatchNorm2d):
    """Batch norm over the batches of all ranks, of equal sizes, on CPUs"""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        sums = torch.stack([x.mean(dim=(0, 2, 3)), x.square().mean(dim=(0, 2, 3))])
        mean, square = dist_nn.all_reduce(sums) / dist.get_world_size()
        variance = square - mean.square()
        number = x.numel() // x.shape[1] * dist.get_world_size()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * number / (number - 1), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


def make_model():
    norm = nn.BatchNorm2d if WRONG else SyncBatchNorm
    layers = [nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 9, 3))


def make_data(number, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (number,), generator=generator)
    images = torch.randn(number, 1, 12, 12, generator=generator) * (1 + labels[:, None, None, None] / 2)
    return TensorDataset(images, labels)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = make_data(192, 0), make_data(96, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=16 // size, sampler=sampler)
    model = DDP(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if rank == 0:
            network = model.module.eval()
            with torch.no_grad():
                right = sum((network(x).argmax(1) == y).sum().item() for x, y in DataLoader(test, batch_size=32))
            print(f"epoch {epoch}: accuracy {right / len(test):.3f}")
            torch.save(network.state_dict(), "best.pt")
        dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
