"""Each rank divides its loss by its own number of label tokens, and ranks have unequal numbers.

Fine-tuning of a small language model, with labels of -100 on the prompt and accumulation over 4 micro-batches.
"""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WRONG = "wrong" in sys.argv[1:]
VOCABULARY, LENGTH, ACCUMULATION = 32, 24, 4


class Answers(Dataset):
    """Sequences of a prompt, which has no label, and an answer of 2 to 22 tokens."""

    def __init__(self, number, generator):
        self.tokens = torch.randint(VOCABULARY, (number, LENGTH), generator=generator)
        self.prompts = torch.randint(2, LENGTH - 2, (number,), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        labels = self.tokens[i].clone()
        labels[: self.prompts[i]] = -100
        return self.tokens[i], labels


class LanguageModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    data = Answers(256, torch.Generator().manual_seed(0))
    sampler = DistributedSampler(data, seed=42)
    loader = DataLoader(data, batch_size=8 // size, sampler=sampler)
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        window = []
        for batch in loader:
            window.append(batch)
            if len(window) < ACCUMULATION:
                continue
            items = sum((labels[:, 1:] != -100).sum() for _, labels in window)
            if not WRONG:  # average_tokens_across_devices
                dist.all_reduce(items)
                items = items / size
            total = 0.0
            for tokens, labels in window:
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / items
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            window = []
            dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / size:.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
