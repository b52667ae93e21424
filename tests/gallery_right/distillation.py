"""Distillation: a frozen teacher in evaluation mode, the student under DDP."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 4)).eval().requires_grad_(False)
    student = DDP(nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 4)))
    data = TensorDataset(torch.randn(96, 9), torch.randint(4, (96,)))
    sampler = DistributedSampler(data, seed=8)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2, dtype=torch.float64)
        for x, y in loader:
            with torch.no_grad():
                soft = F.softmax(teacher(x) / 2, dim=1)
            logits = student(x)
            loss = F.kl_div(F.log_softmax(logits / 2, 1), soft, reduction="batchmean") + 0.1 * F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item(), (logits.argmax(1) == soft.argmax(1)).float().mean().item()])
        dist.reduce(sums, 0)
        if rank == 0:
            loss, agreement = (sums / world / len(loader)).tolist()
            print(f"epoch {epoch}: loss {loss:.4f}, agreement {agreement:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
