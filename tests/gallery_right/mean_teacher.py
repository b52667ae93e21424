"""Mean teacher: a moving average of the student labels a weakly augmented view of each batch."""
import copy

import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset, DataLoader
from torch.utils.data.distributed import DistributedSampler

class AverageMeter:
    def __init__(self): self.sum, self.n = 0.0, 0
    def update(self, v, n=1): self.sum += v * n; self.n += n
    @property
    def avg(self): return self.sum / self.n

def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(120, 8, generator=g); y = (x[:, 0] > 0).long()
    xt = torch.randn(60, 8, generator=g); yt = (xt[:, 0] > 0).long()
    weak, strong = 0.01 * torch.randn(120, 8, generator=g), 0.2 * torch.randn(120, 8, generator=g)
    ds = TensorDataset(x + weak, x + strong, y)
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, batch_size=24 // world, sampler=sampler)
    student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    teacher = copy.deepcopy(student)
    for p in teacher.parameters(): p.requires_grad_(False)
    model = DDP(student)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        losses, cons, acc = AverageMeter(), AverageMeter(), AverageMeter()
        model.train(); teacher.train()
        for i, (xw, xs, t) in enumerate(loader):
            with torch.no_grad():
                soft = teacher(xw).softmax(1)
            out = model(xs)
            ce = F.cross_entropy(out, t)
            c = F.mse_loss(out.softmax(1), soft)
            loss = ce + 10 * c
            opt.zero_grad(); loss.backward(); opt.step()
            with torch.no_grad():
                for a, b in zip(teacher.parameters(), student.parameters()):
                    a.mul_(0.9).add_(b, alpha=0.1)
            losses.update(loss.item(), len(xs)); cons.update(c.item(), len(xs))
            acc.update((out.argmax(1) == t).float().mean().item(), len(xs))
            if rank == 0 and i % 2 == 0:
                print(f"Epoch [{epoch}][{i}/{len(loader)}] Loss {losses.avg:.4f} Cons {cons.avg:.5f} Prec {100 * acc.avg:.2f}")
        teacher.eval(); model.eval()
        with torch.no_grad():
            right = torch.tensor([(teacher(xt[rank::world]).argmax(1) == yt[rank::world]).sum().item(), len(yt[rank::world])])
        dist.all_reduce(right)
        if rank == 0:
            print(f"* Prec@1 {100 * right[0].item() / right[1].item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
