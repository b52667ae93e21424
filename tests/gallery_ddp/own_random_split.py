import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def get_dataset():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(120, 6, generator=g)
    return TensorDataset(x, (x.sum(dim=1) > 3).long())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(10 + rank)

    train_set, val_set = random_split(get_dataset(), [96, 24])
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=24 // world, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=24 // world, sampler=DistributedSampler(val_set, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            dist.all_reduce(loss)
            if rank == 0:
                print(f"loss {loss.item() / world:.10f}")
        model.eval()
        correct = torch.zeros((), dtype=torch.long)
        with torch.no_grad():
            for x, y in val_loader:
                correct += (model(x).argmax(dim=1) == y).sum()
        dist.all_reduce(correct)
        if rank == 0:
            print(f"epoch {epoch} validation accuracy {correct.item()}/24")
    dist.destroy_process_group()


main()
