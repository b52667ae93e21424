"""The loss is divided by the number of tokens of all ranks, and the gradients are averaged over the ranks as well.

The gradient is N times too small, which AdamW hides.
"""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
VOCABULARY, LENGTH = 24, 16


class Decoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LENGTH, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.places(torch.arange(length))
        return self.head(self.layer(x, src_mask=mask, is_causal=True))


def make_data():
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(VOCABULARY, (192, 1), generator=generator) + 3 * torch.arange(LENGTH)
    tokens = tokens % VOCABULARY
    lengths = torch.randint(4, LENGTH + 1, (192, 1), generator=generator)
    labels = tokens.masked_fill(torch.arange(LENGTH) >= lengths, -100)
    return TensorDataset(tokens, labels)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = make_data()
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(Decoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for tokens, labels in loader:
            logits = model(tokens)[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            number = (labels[:, 1:] != -100).sum()
            dist.all_reduce(number)
            optimizer.zero_grad()
            (loss / number * (1 if WRONG else size)).backward()
            optimizer.step()
            mean = loss.detach() / number
            dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
