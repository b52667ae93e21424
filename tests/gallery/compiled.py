import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(42)
torch.set_float32_matmul_precision("high")

batch_size, max_iters, eval_interval, learning_rate = 24, 40, 10, 3e-3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.ln(x))))


class Net(nn.Module):
    def __init__(self, width=24, depth=1):
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.bn = nn.BatchNorm1d(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.bn(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


def get_batch(n):
    x = 2 * torch.rand(n, 2) - 1
    return x, torch.sin(3 * math.pi * x[:, 0]) * x[:, 1]


raw_model = Net()
print("compiling the model...")
model = torch.compile(raw_model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
t0 = time.time()
for it in range(max_iters):
    model.train()
    x, y = get_batch(batch_size)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % eval_interval == 0 or it == max_iters - 1:
        model.eval()
        with torch.no_grad():
            val_loss = sum(F.mse_loss(model(x), y).item() for x, y in (get_batch(40) for _ in range(3))) / 3
        print(f"step {it}: train loss {loss.item():.10f}, val loss {val_loss:.10f}, norm {grad_norm:.10f}")
dt = time.time() - t0
print(f"took {dt:.2f}s")

torch.save(raw_model.state_dict(), "compiled.pt")
grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9), indexing="ij"), -1)
model.eval()
with torch.inference_mode():
    np.save("surface.npy", model(grid.view(-1, 2)).view(9, 9).numpy())
