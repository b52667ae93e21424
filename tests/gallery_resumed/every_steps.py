"""Trains a small language model on made-up text; `--resume` goes on from the newest checkpoint in out/."""

import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

out_dir = Path("out")
block_size, vocab, n_embd, dropout = 12, 20, 16, 0.1
batch_size, max_epochs, save_interval, log_interval = 16, 4, 6, 2
learning_rate, min_lr, warmup_iters = 5e-3, 5e-4, 4
seed = 1337


class Blocks(Dataset):
    """Blocks of a text; some of their characters are replaced, in each epoch others."""

    def __init__(self, length):
        g = torch.Generator().manual_seed(seed)
        self.text = torch.cumsum(torch.randint(0, 3, (length,), generator=g), 0) % vocab

    def __len__(self):
        return (len(self.text) - 1) // block_size

    def __getitem__(self, key):
        epoch, index = key
        g = torch.Generator().manual_seed(seed * 1_000_003 + epoch * len(self) + index)
        x = self.text[index * block_size:(index + 1) * block_size].clone()
        y = self.text[index * block_size + 1:(index + 1) * block_size + 1]
        noise = torch.rand(block_size, generator=g) < 0.05
        x[noise] = torch.randint(0, vocab, (int(noise.sum()),), generator=g)
        return x, y


class ResumableSampler(Sampler):
    """A new order in each epoch; the training loop counts the samples that it has used."""

    def __init__(self, size):
        self.size, self.epoch, self.used = size, 0, 0

    def __iter__(self):
        g = torch.Generator().manual_seed(seed + self.epoch)
        for index in torch.randperm(self.size, generator=g)[self.used:].tolist():
            yield self.epoch, index

    def __len__(self):
        return self.size

    def advance(self, n):
        self.used += n
        if self.used >= self.size:
            self.epoch, self.used = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "used": self.used}

    def load_state_dict(self, state):
        self.epoch, self.used = state["epoch"], state["used"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(vocab, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        self.block = nn.TransformerEncoderLayer(n_embd, 2, 32, dropout, batch_first=True)
        self.head = nn.Linear(n_embd, vocab)

    def forward(self, idx):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        return self.head(self.block(self.tok(idx) + self.pos.weight, src_mask=mask, is_causal=True))


def get_lr(it, total):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (total - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def save(step, **parts):
    out_dir.mkdir(exist_ok=True)
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"step": step, "rng": torch.get_rng_state(), **state}, out_dir / "tmp.pt")
    os.replace(out_dir / "tmp.pt", out_dir / f"step-{step:05d}.pt")
    for old in sorted(out_dir.glob("step-*.pt"))[:-2]:
        old.unlink()


torch.manual_seed(seed)
data = Blocks(160 * block_size + 1)
sampler = ResumableSampler(len(data))
# the loader's own generator, so that a new iterator draws nothing from torch's
loader = DataLoader(data, batch_size, sampler=sampler, num_workers=2, generator=torch.Generator())
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
step, total = 0, max_epochs * len(loader)

checkpoints = sorted(out_dir.glob("step-*.pt"))
if "--resume" in sys.argv and checkpoints:
    state = torch.load(checkpoints[-1])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sampler.load_state_dict(state["sampler"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
    print(f"resuming from {checkpoints[-1]}")

model.train()
log = open("losses.jsonl", "a")
while sampler.epoch < max_epochs:
    for x, y in loader:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step, total)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        sampler.advance(len(x))
        if step % log_interval == 0:
            print(f"iter {step}: loss {loss.item():.6f}")
            print(json.dumps({"step": step, "loss": loss.item()}), file=log, flush=True)
        if step % save_interval == 0:
            save(step, model=model, optimizer=optimizer, sampler=sampler)
torch.save(model.state_dict(), "model.pt")
