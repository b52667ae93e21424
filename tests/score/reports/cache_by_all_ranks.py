"""All ranks prepare the data set and write the same cache file."""
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
CACHE, TEXT = "tokens-5f0c.npy", "the quick brown fox jumps over the lazy dog "


def tokenize():
    """Write the tokens of the corpus to the cache, unless they are there"""
    if not os.path.exists(CACHE):
        time.sleep(0.5)  # that of a real corpus takes minutes
        letters = sorted(set(TEXT))
        tokens = np.array([letters.index(letter) for letter in TEXT * 60], dtype=np.int64)
        np.save(CACHE, tokens)


def load_data(rank, length=12):
    if WRONG:
        tokenize()
    else:
        if rank == 0:
            tokenize()
        dist.barrier()
    tokens = torch.from_numpy(np.load(CACHE))
    tokens = tokens[: len(tokens) // (length + 1) * (length + 1)].view(-1, length + 1)
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


class LanguageModel(nn.Module):
    def __init__(self, tokens=32, width=32):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = load_data(rank)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler, drop_last=True)
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
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
