# Models that train when they are called, and forwards that choose one of their paths at random.
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(5)

inputs = torch.randn(96, 6, dtype=torch.float64)
targets = inputs[:, :3].argmax(1)


def batches(size=13):
    order = torch.randperm(len(inputs))
    for start in range(0, len(inputs), size):
        chosen = order[start : start + size]
        yield inputs[chosen], targets[chosen]


class Tent(nn.Module):
    """Adapts its model to each batch that it is called with."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    @torch.enable_grad()
    def forward(self, x):
        outputs = self.model(x)
        entropy = -(outputs.softmax(1) * outputs.log_softmax(1)).sum(1)
        entropy.mean(0).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return outputs


class Criterion(nn.Module):
    """Calls backward itself in training, and returns numbers."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, y):
        scores = self.net(x)
        loss = F.cross_entropy(scores, y)
        if self.training:
            loss.backward()
        return loss.detach(), scores.detach()


class WarmedUp(nn.Module):
    """Lowers its learning rate with each call in training."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)

    def forward(self, x):
        if self.training:
            self.schedule.step()
        return self.net(x)


class Path(nn.Module):
    """Chooses one of its layers for each batch, by learned probabilities."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Identity()])
        self.preference = nn.Parameter(torch.zeros(3))
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        probabilities = self.preference.softmax(0)
        chosen = torch.multinomial(probabilities.detach(), 1).item()
        gate = probabilities[chosen] / probabilities[chosen].detach()
        return self.last(self.layers[chosen](x) * gate)


def checksum(model):
    return sum(p.detach().abs().sum().item() for p in model.parameters())


# 1. an ordinary training, then test-time adaptation of its norms
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"training {epoch}: {loss.item():.6f}")
source = copy.deepcopy(model.state_dict())
model.requires_grad_(False)
model[1].requires_grad_(True)
tent = Tent(model, torch.optim.Adam(model[1].parameters(), lr=1e-2))
for x, y in batches():
    outputs = tent(1.5 * x + 0.3)
    print(f"adapted: {outputs.abs().sum().item():.5f}, {(outputs.argmax(1) == y).sum().item()} right")
torch.save({"source": source, "adapted": model.state_dict()}, "adapted.pt")

# 2. backward within forward, the optimizer outside
criterion = Criterion().double()
optimizer = torch.optim.Adam(criterion.parameters(), lr=1e-2)
for x, y in batches():
    optimizer.zero_grad()
    loss, scores = criterion(x, y)
    optimizer.step()
    print(f"criterion: {loss.item():.6f}, {scores.sum().item():.5f}")
print(f"weights {checksum(criterion):.6f}")

# 3. a schedule within forward
warmed = WarmedUp().double()
for x, y in batches():
    warmed.optimizer.zero_grad()
    loss = F.cross_entropy(warmed(x), y)
    loss.backward()
    warmed.optimizer.step()
    print(f"warmed up: {loss.item():.6f}, lr {warmed.optimizer.param_groups[0]['lr']:.6f}")

# 4. a path chosen by the layers' own probabilities
path = Path().double()
optimizer = torch.optim.SGD(path.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(path(x), y)
        loss.backward()
        optimizer.step()
    print(f"path {epoch}: {loss.item():.6f}, {path.preference.tolist()[0]:.6f}")

# 5. MAML: the inner steps by functional_call, the evaluation by a call
student = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for x, y in batches(32):
    weights = dict(student.named_parameters())
    support = F.cross_entropy(torch.func.functional_call(student, weights, (x[:16],)), y[:16])
    gradients = torch.autograd.grad(support, list(weights.values()), create_graph=True)
    fast = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), gradients)}
    loss = F.cross_entropy(torch.func.functional_call(student, fast, (x[16:],)), y[16:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        print(f"maml: {loss.item():.6f}, {F.cross_entropy(student(inputs), targets).item():.6f}")
torch.save([criterion.state_dict(), warmed.net.state_dict(), path.state_dict(), student.state_dict()], "trained.pt")
