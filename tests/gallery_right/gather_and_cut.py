"""Evaluation over a padded sampler; predictions are gathered and cut to the length of the data set."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=g)
    return TensorDataset(x, (x[:, :2].sum(1) > 0).long())


@torch.no_grad()
def evaluate(model, dataset, world, rank):
    model.eval()
    sampler = DistributedSampler(dataset, shuffle=False)
    hits = []
    for x, y in DataLoader(dataset, batch_size=5, sampler=sampler):
        hits.append(model(x).argmax(1) == y)
    own = torch.cat(hits)
    parts = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(parts, own)
    together = torch.stack(parts, dim=1).flatten()[:len(dataset)]  # the sampler deals in turns
    model.train()
    return together.float().mean().item(), len(together)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train_set, valid_set = make(96, 1), make(53, 2)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = DistributedSampler(train_set, seed=5)
    loader = DataLoader(train_set, batch_size=24 // world, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy, count = evaluate(model, valid_set, world, rank)
        if rank == 0:
            print(f"epoch {epoch} accuracy {accuracy:.4f} of {count}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
