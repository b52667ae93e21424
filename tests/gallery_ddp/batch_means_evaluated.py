"""Fine-tuning in the style of masked autoencoders: meters that are synchronized over the ranks."""
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


class SmoothedValue:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.count += n
        self.total += value * n

    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.count, self.total = int(t[0]), t[1].item()

    @property
    def global_avg(self):
        return self.total / self.count


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean() * 100.0


@torch.no_grad()
def evaluate(loader, model):
    criterion, meters = nn.CrossEntropyLoss(), defaultdict(SmoothedValue)
    model.eval()
    for images, target in loader:
        output = model(images)
        meters["loss"].update(criterion(output, target).item())
        meters["acc1"].update(accuracy(output, target).item(), n=len(images))
    for meter in meters.values():
        meter.synchronize_between_processes()
    return {name: meter.global_avg for name, meter in meters.items()}


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(174, 12)
    y = x[:, :3].argmax(1)
    train, val = TensorDataset(x[:120], y[:120]), TensorDataset(x[120:], y[120:])
    val = Subset(val, range(rank, len(val), world))
    sampler = DistributedSampler(train, shuffle=True)
    loader = DataLoader(train, batch_size=24 // world, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, batch_size=16)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for images, target in loader:
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        stats = evaluate(val_loader, model)
        if rank == 0:
            print(f"* Acc@1 {stats['acc1']:.3f} loss {stats['loss']:.3f}")
            print(f"Accuracy of the network on the {len(x) - 120} test images: {stats['acc1']:.1f}%")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
