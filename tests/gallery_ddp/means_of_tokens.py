import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

IGNORED = -100


def sentences(count, length=10):
    """Sentences of unequal lengths, and the next token of each position, none after the end"""
    g = torch.Generator().manual_seed(6)
    tokens = torch.randint(1, 20, (count, length + 1), generator=g)
    ends = torch.randint(2, length, (count, 1), generator=g)
    targets = tokens[:, 1:].masked_fill(torch.arange(length) >= ends, IGNORED)
    return TensorDataset(tokens[:, :-1], targets)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    data = sentences(96)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 24 // world, sampler=sampler)
    model = DDP(nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for tokens, targets in loader:
            logits = model(tokens).transpose(1, 2)
            # the mean over the tokens of this rank, which has more or fewer than another one
            loss = nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
