"""Layers that the training loop changes: rates of dropout, parts in eval(), frozen parts."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(6)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.drop = nn.Dropout(0.0)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.drop_path = [0.0, 0.0]
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        h = self.drop(self.body(x))
        for layer, p in zip(self.layers, self.drop_path):
            out = layer(h).tanh()
            if self.training and p > 0:
                out = out * (torch.rand(len(x), 1) > p) / (1 - p)
            h = h + out
        return self.head(h)


x = torch.randn(60, 5)
y = (x[:, 0].sin() + x[:, 1] > 0).long() + (x[:, 2] > 0.7).long()


def epoch(model, opt, n=3):
    for rows in torch.randperm(60).split(14)[:n]:
        loss = F.cross_entropy(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 5.0)
        opt.step()
    return f"{loss.item():.10f} norm {norm.item():.10f}"


print("dropout raised")
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model.drop.p = 0.15 * step
    print(f"p {model.drop.p:.2f}: {epoch(model, opt)}")

print("stochastic depth raised, in a list")
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model.drop_path[1] = 0.2 * step
    print(f"p {model.drop_path[1]:.2f}: {epoch(model, opt)}")

print("batch norm put into eval() and back")
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model.train()
    if step % 2:
        for part in model.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
    print(f"step {step}: {epoch(model, opt)} mean {model.body[1].running_mean.sum().item():.10f}")

print("the body unfrozen")
model = Net()
for p in model.body.parameters():
    p.requires_grad = False
model.body.eval()
opt = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3)
print(f"frozen: {epoch(model, opt)}")
model.body.requires_grad_(True)
print(f"gradients, in eval(): {epoch(model, opt)}")
model.train()
print(f"all: {epoch(model, opt)}")
model.head.requires_grad_(False)
print(f"head frozen: {epoch(model, opt)}")

print("momentum of batch norm, layers replaced")
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
print(epoch(model, opt))
model.body[1].momentum = 0.5
model.body[2] = nn.GELU()
print(epoch(model, opt))
model.body[1] = nn.Identity()
model.head = nn.Linear(12, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
print(epoch(model, opt))
model.eval()
with torch.no_grad():
    print(f"at the end {F.cross_entropy(model(x), y).item():.10f}")
