from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ModelEMA:
    """Keeps a moving average of everything in the model's state dict (parameters and buffers)."""

    def __init__(self, model, decay=0.9, warmup=10):
        self.ema = deepcopy(model).eval()
        self.updates = 0
        self.decay, self.warmup = decay, warmup
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        d = self.decay * min(1.0, self.updates / self.warmup)
        for ema_p, p in zip(self.ema.parameters(), model.parameters()):
            ema_p.data.mul_(d).add_(p.data, alpha=1 - d)
        for ema_b, b in zip(self.ema.buffers(), model.buffers()):
            if b.dtype.is_floating_point:
                ema_b.data.mul_(d).add_(b.data, alpha=1 - d)
            else:
                ema_b.copy_(b)


class Net(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c)
        self.head = nn.Linear(c, 6)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(x + self.bn2(self.conv2(x)))
        return self.head(x.mean(dim=(2, 3)))


def build_data(n, templates):
    labels = torch.randint(len(templates), (n,))
    images = templates[labels] + 0.9 * torch.randn(n, 1, 7, 7)
    return TensorDataset(images, labels)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss = correct = count = 0
    for x, y in loader:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
        count += y.numel()
    return loss / count, correct / count


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(31)
    templates = torch.randn(6, 1, 7, 7)
    train = DataLoader(build_data(223, templates), batch_size=32, shuffle=True)
    test = DataLoader(build_data(101, templates), batch_size=64)

    model = Net()
    ema = ModelEMA(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for epoch in range(6):
        model.train()
        for x, y in train:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            ema.update(model)
        own, averaged = evaluate(model, test), evaluate(ema.ema, test)
        print(f"[{epoch}] last batch {loss.item():.10f}")
        print(f"    model loss {own[0]:.10f} acc {own[1]:.10f}")
        print(f"    ema   loss {averaged[0]:.10f} acc {averaged[1]:.10f}")

    torch.save({"model": model.state_dict(), "ema": ema.ema.state_dict(), "updates": ema.updates}, "ema.pth")


if __name__ == "__main__":
    main()
