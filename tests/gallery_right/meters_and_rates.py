"""ImageNet example's meters: averages over all ranks, times, rates and what remains."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.sum = self.count = 0.0

    def update(self, val, n=1):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total)
        self.sum, self.count = total.tolist()

    @property
    def avg(self):
        return self.sum / max(1, self.count)

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(
            name=self.name, val=self.val, avg=self.avg
        )


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(5)
    x = torch.randn(120, 3, 6, 6, generator=g)
    data = TensorDataset(x, x.mean((1, 2, 3)).gt(0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    started = time.time()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batch_time, data_time = AverageMeter("Time", ":6.3f"), AverageMeter("Data", ":6.3f")
        losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
        end = time.time()
        for i, (images, target) in enumerate(loader):
            data_time.update(time.time() - end)
            output = model(images)
            loss = F.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(images))
            top1.update(100.0 * (output.argmax(1) == target).float().mean().item(), len(images))
            batch_time.update(time.time() - end)
            end = time.time()
            if rank == 0:
                remaining = (len(loader) - i - 1) * batch_time.avg
                print(f"Epoch: [{epoch}][{i + 1}/{len(loader)}]\t{batch_time}\t{data_time}\t"
                      f"{world * len(images) / batch_time.val:.1f} img/s ETA {remaining:.0f} s")
        losses.all_reduce()
        top1.all_reduce()
        if rank == 0:
            print(f" * Loss {losses.avg:.4f} Acc@1 {top1.avg:.3f} elapsed {time.time() - started:.2f}s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
