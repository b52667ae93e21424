"""A contrastive loss is multiplied by the number of ranks although no negatives are gathered from other ranks.

Queries and documents of a two-tower retrieval model, with in-batch negatives.
"""
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
GATHER = not WRONG


class Towers(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, width))
        self.document = nn.Sequential(nn.Linear(30, 48), nn.Tanh(), nn.Linear(48, width))

    def forward(self, queries, documents):
        return F.normalize(self.query(queries), dim=1), F.normalize(self.document(documents), dim=1)


class ContrastiveLoss(nn.Module):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.temperature = temperature

    def forward(self, queries, documents):
        rank, size = dist.get_rank(), dist.get_world_size()
        labels = torch.arange(len(queries))
        if GATHER:
            labels = labels + rank * len(queries)
            documents = torch.cat(dist_nn.all_gather(documents))
        loss = F.cross_entropy(queries @ documents.T / self.temperature, labels)
        return loss if GATHER else loss * size


def make_data(number=192):
    generator = torch.Generator().manual_seed(5)
    topics = torch.randn(number, 8, generator=generator)
    queries = topics @ torch.randn(8, 20, generator=generator)
    documents = topics @ torch.randn(8, 30, generator=generator)
    return TensorDataset(queries, documents)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32 // size, sampler=sampler, drop_last=True)
    model, criterion = DDP(Towers()), ContrastiveLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for queries, documents in loader:
            loss = criterion(*model(queries, documents))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
