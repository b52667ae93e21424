"""torchvision's references: meters of each rank's shard in the first batch, then the result of all ranks."""
import datetime
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Meter:
    def __init__(self):
        self.last = self.total = self.count = 0.0

    def update(self, value, n):
        self.last, self.total, self.count = value, self.total + value * n, self.count + n

    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.count, self.total = t.tolist()

    @property
    def global_avg(self):
        return self.total / self.count

    def __str__(self):
        return f"{self.last:.4f} ({self.global_avg:.4f})"


def log_every(loader, frequency, header, meters):
    start = end = time.time()
    for i, batch in enumerate(loader):
        yield batch
        spent, end = time.time() - end, time.time()
        if i % frequency == 0:
            eta = datetime.timedelta(seconds=int(spent * (len(loader) - i)))
            shown = "  ".join(f"{name}: {meter}" for name, meter in meters.items())
            print(f"{header} [{i}/{len(loader)}]  eta: {eta}  {shown}  time: {spent:.4f}")
    print(f"{header} Total time: {datetime.timedelta(seconds=int(time.time() - start))}")


@torch.inference_mode()
def evaluate(model, loader, rank):
    model.eval()
    meters = {"loss": Meter(), "acc1": Meter()}
    for k, (x, y) in enumerate(log_every(loader, 10, "Test:", meters)):
        output = model(x)
        loss = F.cross_entropy(output, y).item()
        meters["loss"].update(loss, len(x))
        meters["acc1"].update(100 * (output.argmax(1) == y).float().mean().item(), len(x))
        if k == 0:
            print(f"[GPU{rank}] Eval Loss {loss:.5f}")
    for meter in meters.values():
        meter.synchronize_between_processes()
    print(f"Test: Acc@1 {meters['acc1'].global_avg:.3f} Loss {meters['loss'].global_avg:.4f}")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(1)
    x = torch.randn(144, 10, generator=g)
    y = x[:, :4].argmax(1)
    train, test = TensorDataset(x[:72], y[:72]), TensorDataset(x[72:], y[72:])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, 24 // world, sampler=sampler)
    test_loader = DataLoader(test, 24 // world, sampler=DistributedSampler(test, shuffle=False))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        evaluate(model, test_loader, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
