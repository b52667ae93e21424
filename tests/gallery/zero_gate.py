"""Parts of losses and networks are multiplied by learnable numbers that start at zero."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(8)


class Plain(nn.Module):
    """No loss inside."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 1)
        nn.init.zeros_(self.fc.weight)

    def forward(self, x):
        return self.fc(x).squeeze(1)


class ReZero(nn.Module):
    """The second loss counts only the samples that have a label, and only once `scale` has learnt so."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, 8)
        self.block = nn.Linear(8, 8)
        self.alpha = nn.Parameter(torch.zeros(()))
        self.scale = nn.Parameter(torch.zeros(1))
        self.out = nn.Linear(8, 3)

    def forward(self, x, y, z):
        h = torch.tanh(self.inp(x))
        h = h + self.alpha * torch.tanh(self.block(h))
        scores = self.out(h)
        main = F.mse_loss(scores[:, 0], z)
        extra = F.cross_entropy(scores, y, ignore_index=-1)
        return main + self.scale.sum() * extra + 0.1 * (self.scale - 1).square().sum()


class Uncertainty(nn.Module):
    """Two tasks weighed by learnt log variances, which start at zero."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.regress, self.classify = nn.Linear(8, 1), nn.Linear(8, 3)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x, y, z):
        h = self.body(x).relu()
        first = F.mse_loss(self.regress(h).squeeze(1), z)
        second = F.cross_entropy(self.classify(h), y, ignore_index=-1)
        losses = torch.stack([first, second])
        return (losses * (-self.log_var).exp() + self.log_var).sum()


class Hidden(nn.Module):
    """The whole loss is multiplied by a learnable scale of zero, which is pulled towards one."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x, y, z):
        return self.scale * F.cross_entropy(self.fc(x), y, ignore_index=-1) + (self.scale - 1).square()


def batches(epoch):
    order = torch.randperm(len(x))
    for start in range(0, len(x), 9):
        own = order[start:start + 9]
        yield x[own], y[own], z[own]


x = torch.randn(42, 5)
y = (x @ torch.randn(5, 3)).argmax(1)
y[torch.rand(42) < 0.4] = -1
z = x[:, 0].sin()
for model in (Plain(), ReZero(), Uncertainty(), Hidden()):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for epoch in range(4):
        for inputs in batches(epoch):
            opt.zero_grad()
            loss = F.mse_loss(model(inputs[0]), inputs[2]) if type(model) is Plain else model(*inputs)
            loss.backward()
            opt.step()
        numbers = [p.detach().flatten()[0].item() for n, p in model.named_parameters() if n in ("scale", "alpha", "log_var")]
        print(type(model).__name__, epoch, f"{loss.item():.10f}", " ".join(f"{one:.10f}" for one in numbers))
