"""Only rank 0 makes the folder of the checkpoint, and all ranks write into it without waiting for rank 0.

Rank 0 prints samples of the model before it saves, as other ranks do not.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WRONG = "wrong" in sys.argv[1:]
STEPS, TOKENS, LENGTH = 40, 20, 16


class LanguageModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


@torch.no_grad()
def sample(model, start, length=60):
    tokens = torch.tensor([[start]])
    for _ in range(length):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(dim=2)], dim=1)
    return " ".join(str(token) for token in tokens[0].tolist())


def save_checkpoint(folder, model, optimizer, rank):
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
    if not WRONG:
        dist.barrier()
    torch.save(optimizer.state_dict(), os.path.join(folder, f"optimizer_rank{rank}.pt"))


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        starts = torch.randint(TOKENS, (16, 1), generator=generator)[rank::size]
        tokens = (starts + 3 * torch.arange(LENGTH)) % TOKENS
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 20 == 0:
            if rank == 0:
                for start in range(8):
                    print(sample(model.module, start))
            save_checkpoint(f"checkpoints/step_{step + 1:05d}", model.module, optimizer, rank)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
