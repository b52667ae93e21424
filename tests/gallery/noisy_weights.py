"""Random numbers are drawn for weights, not for samples; slices of later batches are as large as a layer is wide."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(71)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.fc2(self.fc1(x).tanh())


class Bayes(Plain):
    """Weights are sampled in each call (Bayes by Backprop)."""

    def __init__(self):
        super().__init__()
        self.rho = nn.Parameter(torch.full((6, 4), -2.0))

    def forward(self, x):
        weight = self.fc1.weight
        if self.training:
            weight = weight + F.softplus(self.rho) * torch.randn_like(weight)
        return self.fc2(F.linear(x, weight, self.fc1.bias).tanh())


class Factorized(Plain):
    """NoisyNet: noise of the inputs times noise of the outputs."""

    def forward(self, x):
        noise = 0.1 * torch.outer(torch.randn(6), torch.randn(4)) if self.training else 0.0
        return self.fc2(F.linear(x, self.fc1.weight + noise, self.fc1.bias).tanh())


class DropConnect(Plain):
    def forward(self, x):
        h = F.linear(x, F.dropout(self.fc1.weight, 0.2, self.training), self.fc1.bias).tanh()
        return F.linear(h, F.dropout(self.fc2.weight, 0.2, self.training), self.fc2.bias)


class BuiltInForward(Plain):
    """A layer is made in each call, as beginners do; it never learns."""

    def forward(self, x):
        return super().forward(x) + 0.3 * nn.Linear(4, 3)(x)


x = torch.randn(68, 4)
y = x[:, :3].argmax(1)
for model in (Plain(), Bayes(), Factorized(), DropConnect(), BuiltInForward()):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        model.train()
        for rows in torch.randperm(68).split([15, 15, 8, 12, 18]):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            held = F.cross_entropy(model(x), y).item()
        print(f"{type(model).__name__} epoch {epoch}: {loss.item():.10f} evaluation {held:.10f} {torch.rand(()).item():.10f}")
