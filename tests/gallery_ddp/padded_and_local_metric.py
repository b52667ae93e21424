import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, loader, total):
    """Each rank counts the hits of its own shard, and divides them by the number of all samples"""
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += int((model(x).argmax(dim=1) == y).sum())
    model.train()
    return hits / total


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    points = torch.randn(123, 6)
    labels = (points[:, 0] * points[:, 1] > 0).long()
    train = TensorDataset(points[:96], labels[:96])
    held_out = TensorDataset(points[96:], labels[96:])  # 27 samples, 28 with the sampler's repeat
    sampler = DistributedSampler(train, world, rank)
    loader = DataLoader(train, 24 // world, sampler=sampler)
    test_sampler = DistributedSampler(held_out, world, rank, shuffle=False)
    test_loader = DataLoader(held_out, 7, sampler=test_sampler)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader, len(held_out))
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
