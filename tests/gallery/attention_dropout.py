"""Attention weights of (B * heads, T, T) with dropout, where T is equal to the size of a slice of the batch."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self, p=0.25):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, 3)
        self.drop = nn.Dropout(p)

    def split(self, t):
        B, T, _ = t.shape
        return t.view(B, T, HEADS, -1).transpose(1, 2).reshape(B * HEADS, T, -1)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        att = (q @ k.transpose(1, 2) / math.sqrt(WIDTH // HEADS)).softmax(-1)
        h = self.drop(att) @ v
        B, T, _ = x.shape
        return self.out(h.view(B, HEADS, T, -1).transpose(1, 2).reshape(B, T, WIDTH))


class HeadsFirst(Attention):
    """Weights of (heads * B, T, T): heads change slower than samples."""

    def split(self, t):
        B, T, _ = t.shape
        return t.view(B, T, HEADS, -1).permute(2, 0, 1, 3).reshape(HEADS * B, T, -1)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        att = (q @ k.transpose(1, 2) / math.sqrt(WIDTH // HEADS)).softmax(-1)
        h = self.drop(att) @ v
        B, T, _ = x.shape
        return self.out(h.view(HEADS, B, T, -1).permute(1, 2, 0, 3).reshape(B, T, WIDTH))


class Torchs(nn.Module):
    """torch's own layer, and one mask on the positions of all samples."""

    def __init__(self):
        super().__init__()
        self.att = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.2, batch_first=True)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        h, _ = self.att(x, x, x, need_weights=False)
        if self.training:
            h = h * (torch.rand(x.size(1), 1) > 0.1)
        return self.out(h)


for model in (Attention(0.0), Attention(), HeadsFirst(), Torchs()):
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (size, steps) in enumerate([(10, 6), (10, 6), (10, 5), (10, 5), (10, 4), (12, 6), (12, 4), (9, 3), (10, 10)] * 2):
        x = torch.randn(size, steps, WIDTH)
        y = x[..., :3].cumsum(1).argmax(-1)
        loss = F.cross_entropy(model(x).transpose(1, 2), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 3 == 2:
            print(f"{type(model).__name__} step {step}: T {steps} loss {loss.item():.10f}")
    model.eval()
    with torch.no_grad():
        print(f"{type(model).__name__} eval {model(torch.randn(11, 5, WIDTH)).abs().mean().item():.10f}")
torch.save(model.state_dict(), "attention.pt")
