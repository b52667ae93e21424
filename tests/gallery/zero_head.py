"""Heads that start at zero, as in transfer learning, so that all samples have the same first loss."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(3)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(4, 8)
        self.h = nn.Linear(8, 3)
        nn.init.zeros_(self.h.weight)
        nn.init.zeros_(self.h.bias)

    def forward(self, x, y):
        return F.cross_entropy(self.h(torch.tanh(self.b(x))), y)


class Scores(Classifier):
    def forward(self, x):
        return self.h(torch.tanh(self.b(x)))


class Smoothed(Classifier):
    """Label smoothing, and the sum divided by the number of samples in forward."""

    def forward(self, x, y):
        scores = self.h(torch.tanh(self.b(x)))
        return F.cross_entropy(scores, y, label_smoothing=0.1, reduction="sum") / len(x)


class Margin(nn.Module):
    """A regression head of zeros on targets of plus and minus one: the first loss is one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1, bias=False))
        nn.init.zeros_(self.body[2].weight)

    def forward(self, x, y):
        out = self.body(x).squeeze(1)
        return {"loss": F.mse_loss(out, y), "out": out}


class Logistic(nn.Module):
    """One zero weight per feature, as in a textbook."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x, y):
        return F.binary_cross_entropy_with_logits(x @ self.weight, y)


x = torch.randn(51, 4)
labels = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long() + (x[:, 3] > 0.5).long()
sign = torch.where(x[:, 0] > x[:, 1], 1.0, -1.0)
data = DataLoader(TensorDataset(x, labels, sign), batch_size=9, shuffle=True)

models = {"scores": Scores(), "classifier": Classifier(), "smoothed": Smoothed(), "margin": Margin(), "logistic": Logistic()}
history = []
for name, model in models.items():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(3):
        total = 0.0
        for batch, classes, signs in data:
            if name == "scores":
                loss = F.cross_entropy(model(batch), classes)
            elif name == "margin":
                loss = model(batch, signs)["loss"]
            elif name == "logistic":
                loss = model(batch, (signs + 1) / 2)
            else:
                loss = model(batch, classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
            history.append(loss.item())
        print(f"{name} epoch {epoch}: loss {total / len(x):.10f}")
np.save("zero_head.npy", np.array(history))
