"""Weights that belong to no module: passed to the model, set as its attribute, found by a global name."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x, scale, temperature, shifts=None):
        y = self.linear(x * scale) * temperature.exp()
        return y if shifts is None else y + shifts["all"].sum(0)


class Conditioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.code = None

    def forward(self, x):
        return self.linear(x * self.code)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x * current["code"])


class Prompted(nn.Module):
    """A frozen model with soft prompts before its tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 9)

    def forward(self, tokens, prompt):
        h = torch.cat([prompt.expand(len(tokens), -1, -1), self.embedding(tokens)], 1)
        return self.head(self.attention(h, h, h, need_weights=False)[0])[:, prompt.size(-2) :]


def batch():
    x = torch.randn(11, 5)
    return x, (3 * x[:, 0] > x[:, 1]).long()


def step(optimizer, loss, name, *weights):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(name, f"{loss.item():.10f}", *(f"{one.sum().item():.10f}" for one in weights))


# passed as arguments: a leaf, computed from one, a number, in a dict; with a penalty on their gradients
model = Scaled()
scale, temperature = nn.Parameter(torch.ones(5)), nn.Parameter(torch.tensor(0.1))
shifts = [torch.zeros(2, 3, requires_grad=True) for _ in range(3)]
optimizer = torch.optim.SGD([*model.parameters(), scale, temperature, *shifts], 0.3, momentum=0.9)
for i in range(8):
    x, y = batch()
    given = {} if i % 4 == 0 else {"shifts": {"all": shifts[i % 3]}}
    loss = F.cross_entropy(model(x, scale if i % 3 else 1.5 * scale, temperature, **given), y)
    if i % 2:
        grads = torch.autograd.grad(loss, [scale, temperature], create_graph=True)
        loss = loss + 0.1 * sum(one.pow(2).sum() for one in grads)
    step(optimizer, loss, f"argument {i}", scale, temperature, *shifts)

# an attribute: another weight for each task, or computed from it
model, hyper = Conditioned(), nn.Linear(2, 5)
codes = [torch.ones(5, requires_grad=True) for _ in range(3)]
tasks = [torch.randn(2, requires_grad=True) for _ in range(3)]
optimizer = torch.optim.SGD([*model.parameters(), *hyper.parameters(), *codes, *tasks], 0.3)
for i in range(8):
    x, y = batch()
    model.code = codes[i % 3] if i % 2 else torch.tanh(tasks[i % 3] @ hyper.weight.t() + hyper.bias) + 1
    step(optimizer, F.cross_entropy(model(x), y), f"attribute {i}", *codes, *tasks)

# a global
model, current = Named(), {}
codes = [torch.ones(5, requires_grad=True) for _ in range(3)]
optimizer = torch.optim.SGD([*model.parameters(), *codes], 0.3)
for i in range(8):
    x, y = batch()
    current["code"] = codes[i % 3]
    step(optimizer, F.cross_entropy(model(x), y), f"global {i}", *codes)

model, prompt = Prompted().requires_grad_(False), nn.Parameter(0.1 * torch.randn(4, 6))
optimizer = torch.optim.Adam([prompt], 1e-2)
for i in range(4):
    tokens = torch.randint(0, 9, (10, 7))
    loss = F.cross_entropy(model(tokens, prompt).flatten(0, 1), tokens.flatten())
    step(optimizer, loss, f"prompt {i}", prompt)
torch.save({"prompt": prompt.data, "codes": [one.data for one in codes]}, "weights.pt")
