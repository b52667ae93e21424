"""A tiny GPT learns to sort digits; the targets of the prompt are -1, only the sorted part counts."""
import math
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(1337)

block_size, vocab_size, n_layer, n_head, n_embd, dropout = 13, 6, 2, 2, 24, 0.1
batch_size, max_iters, warmup, learning_rate, grad_clip = 25, 46, 10, 1e-2, 1.0
SEP = vocab_size - 1


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", mask.view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = [s.view(B, T, n_head, C // n_head).transpose(1, 2) for s in self.c_attn(x).split(n_embd, dim=2)]
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    def configure_optimizers(self, weight_decay, lr):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        nodecay = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": weight_decay}, {"params": nodecay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def get_batch(n):
    x = torch.full((n, block_size + 1), SEP)
    y = torch.full((n, block_size + 1), -1)
    for row in range(n):
        length = int(torch.randint(2, block_size // 2 + 1, (1,)))
        digits = torch.randint(0, SEP, (length,))
        x[row, :length] = digits
        x[row, length + 1:2 * length + 1] = y[row, length + 1:2 * length + 1] = digits.sort().values
    return x[:, :-1].contiguous(), y[:, 1:].contiguous()


model = GPT()
optimizer = model.configure_optimizers(weight_decay=0.1, lr=learning_rate)
t0 = time.time()
for it in range(max_iters):
    ratio = (it - warmup) / (max_iters - warmup)
    lr = learning_rate * ((it + 1) / warmup if it < warmup else 0.5 * (1 + math.cos(math.pi * ratio)))
    for group in optimizer.param_groups:
        group["lr"] = lr
    logits, loss = model(*get_batch(batch_size))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    if it % 15 == 0 or it == max_iters - 1:
        print(f"iter {it}: loss {loss.item():.10f}, lr {lr:.10f}")
print(f"time per iteration {(time.time() - t0) / max_iters * 1000:.2f}ms")

model.eval()
with torch.no_grad():
    x, y = get_batch(83)
    logits, loss = model(x, targets=y)
    hit = (logits.argmax(-1) == y)[y != -1].double().mean()
print(f"held out: loss {loss.item():.10f}, right {hit.item():.10f}")
torch.save(model.state_dict(), "ckpt.pt")
