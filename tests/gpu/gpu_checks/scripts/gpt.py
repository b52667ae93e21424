"""Trains a GPT on sequences of digits; the model computes the loss, and ignores the first targets."""

import torch
import torch.nn.functional as F
from torch import nn

LETTERS, CONTEXT, WIDTH = 12, 16, 32
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.project(self.norm(x)).unflatten(-1, (3, 2, -1)).transpose(1, 3).unbind(2)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(heads.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Attention(), nn.Linear(WIDTH, WIDTH), nn.GELU(), Attention())
        self.head = nn.Linear(WIDTH, LETTERS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.blocks(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(10):
    sequence = (torch.randint(LETTERS, (24, 1)) + torch.arange(CONTEXT + 1)) % LETTERS
    ids, targets = sequence[:, :-1].to(device), sequence[:, 1:].clone().to(device)
    targets[:, :5] = -1
    _, loss = model(ids, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.6f}")
