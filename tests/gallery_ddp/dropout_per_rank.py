import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Encoder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.2, batch_first=True)
        self.score = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.score(self.layer(self.embedding(tokens)).mean(dim=1))


def main():
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    tokens = torch.randint(11, (96, 6), generator=torch.Generator().manual_seed(8))
    dataset = TensorDataset(tokens, (tokens.sum(dim=1) > 30).long())
    sampler = DistributedSampler(dataset, world, rank, shuffle=True, seed=1)
    loader = DataLoader(dataset, 24 // world, sampler=sampler)
    # different masks on different ranks; DDP sends rank 0's parameters to all
    set_seed(100 + rank)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            reported = loss.detach() / world
            dist.all_reduce(reported)
            if rank == 0:
                print("epoch", epoch, "loss", round(reported.item(), 9))


if __name__ == "__main__":
    main()
