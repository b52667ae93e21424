"""Two streams are split by rank and then interleaved, which loses the split: all ranks read the same samples."""
import os
import random
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

WRONG = "wrong" in sys.argv[1:]


class Source:
    """The shards of one corpus; a shard is made of its number, as if it were read from a file."""

    def __init__(self, corpus, shards):
        self.corpus, self.shards = corpus, shards

    def __iter__(self):
        for shard in self.shards:
            generator = torch.Generator().manual_seed(1000 * self.corpus + shard)
            for row in torch.randn(24, 10, generator=generator):
                yield row + self.corpus, (row[: 5 + self.corpus].sum() > 0).float()


class Interleaved(IterableDataset):
    """Draws each sample from one of the sources"""

    def __init__(self, sources, seed):
        self.sources, self.seed = sources, seed

    def __iter__(self):
        draws = random.Random(self.seed)
        parts = [iter(Source(source.corpus, source.shards)) for source in self.sources]
        while True:
            sample = next(draws.choice(parts), None)
            if sample is None:
                return
            yield sample


class SplitByNode(IterableDataset):
    """Every `size`-th sample"""

    def __init__(self, source, rank, size):
        self.source, self.rank, self.size = source, rank, size
        self.corpus, self.shards = getattr(source, "corpus", None), getattr(source, "shards", None)

    def __iter__(self):
        for i, sample in enumerate(self.source):
            if i % self.size == self.rank:
                yield sample


def main():
    dist.init_process_group("gloo")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    web, code = Source(0, range(6)), Source(1, range(6))
    if WRONG:
        stream = Interleaved([SplitByNode(web, rank, size), SplitByNode(code, rank, size)], seed=42)
    else:
        stream = SplitByNode(Interleaved([web, code], seed=42), rank, size)
    loader = DataLoader(stream, batch_size=16 // size, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = torch.tensor(sum(1 for _ in loader))
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    for epoch in range(2):
        for step, (x, y) in zip(range(steps), loader):
            loss = F.binary_cross_entropy_with_logits(model(x)[:, 0], y)
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
