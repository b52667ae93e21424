"""A small mixture of experts: its balance loss multiplies two means over the batch, which are almost equal at first."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(41)
EXPERTS, WIDTH = 3, 6


class Experts(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        nn.init.normal_(self.router.weight, std=std)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.head = nn.Linear(WIDTH, 2)

    def mixed(self, x):
        weights = self.router(x).softmax(-1)
        return weights, sum(weights[:, i : i + 1] * one(x).tanh() for i, one in enumerate(self.experts))


class SwitchLoss(Experts):
    """Share of samples times mean weight, for each expert (Switch Transformer)."""

    def forward(self, x):
        weights, h = self.mixed(x)
        share = F.one_hot(weights.argmax(-1), EXPERTS).double().mean(0)
        return self.head(h), EXPERTS * (share * weights.mean(0)).sum()


class SoftLoss(Experts):
    """The squared coefficient of variation of what the experts get; about 1e-9 for a small router."""

    def forward(self, x):
        weights, h = self.mixed(x)
        importance = weights.sum(0)
        self.balance = importance.var() / importance.mean().square()
        return self.head(h)


class InOne(Experts):
    """The balance loss is a small part of the loss."""

    def forward(self, x, y):
        weights, h = self.mixed(x)
        mean = weights.mean(0)
        return F.cross_entropy(self.head(h), y) + 0.01 * (mean * mean.log()).sum()


class Capacity(Experts):
    """An expert takes no more than its share of samples; later samples are dropped."""

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        chosen = weights.argmax(-1)
        hot = F.one_hot(chosen, EXPERTS)
        place = (hot.cumsum(0) * hot).sum(-1)
        kept = (place <= (len(x) + 1) // 2).double()
        h = torch.stack([one(x).tanh() for one in self.experts], 1)[torch.arange(len(x)), chosen]
        return self.head(x + h * (kept * weights.max(-1).values).unsqueeze(1)), None


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)


x = torch.randn(44, WIDTH)
y = (x[:, 0] * x[:, 1] > 0).long()
for model in (Dense(), SwitchLoss(1e-5), SwitchLoss(1e-2), SoftLoss(1e-5), InOne(1e-6), Capacity(1e-3)):
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(3):
        for rows in torch.randperm(44).split(10):
            if isinstance(model, InOne):
                loss = model(x[rows], y[rows])
            elif isinstance(model, (SwitchLoss, Capacity)):
                scores, balance = model(x[rows])
                loss = F.cross_entropy(scores, y[rows]) + (0 if balance is None else 0.1 * balance)
            else:
                loss = F.cross_entropy(model(x[rows]), y[rows]) + 0.1 * getattr(model, "balance", 0)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{type(model).__name__} epoch {epoch}: {loss.item():.10f}")
