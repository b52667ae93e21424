"""Losses in forward on two targets, with class weights, that are the same for all parts of the first batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 10), nn.ReLU())
        self.shape, self.color = nn.Linear(10, 3), nn.Linear(10, 4)
        self.register_buffer("weight", torch.ones(3))

    def forward(self, x, shape, color):
        h = self.body(x)
        return F.cross_entropy(self.shape(h), shape, weight=self.weight), h


class Scores(Net):
    """The loss is computed outside."""

    def forward(self, x, shape, color):
        h = self.body(x)
        return self.color(h), h


class TwoLosses(Net):
    """Labels of each kind may be absent."""

    def forward(self, x, shape, color):
        h = self.body(x)
        first = F.cross_entropy(self.shape(h), shape, ignore_index=-1)
        second = F.cross_entropy(self.color(h), color, ignore_index=-1)
        return first + 0.5 * second, h


class Ratio(Net):
    """A weighted mean over samples by hand: the weight is of the class."""

    def forward(self, x, shape, color):
        h = self.body(x)
        weight = self.weight[shape.clamp(min=0)] * (shape >= 0)
        each = F.cross_entropy(self.shape(h), shape.clamp(min=0), reduction="none")
        return (weight * each).sum() / weight.sum(), h


class Positives(Net):
    """As a detector: the boxes' loss is a mean over the positives, the scores' over all."""

    def forward(self, x, shape, color):
        h = self.body(x)
        positive = color > 0
        box = F.smooth_l1_loss(self.shape(h)[positive], x[positive, :3])
        return F.binary_cross_entropy_with_logits(self.color(h)[:, 0], positive.double()) + box, h


x = torch.randn(58, 6)
shape = x[:, :3].argmax(1)
color = x[:, 2:].argmax(1)
shape[9:][torch.rand(49) < 0.3] = -1
color[9:][torch.rand(49) < 0.5] = -1
color[:9] = 1 + torch.arange(9) % 3
loader = DataLoader(TensorDataset(x, shape, color), batch_size=9)

for model in (Scores(), Net(), TwoLosses(), Ratio(), Positives()):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        total = seen = 0
        for data, one, two in loader:
            if type(model) is Net:
                one = one.clamp(min=0)
            loss, h = model(data, one, two)
            if type(model) is Scores:
                loss = F.cross_entropy(loss, two, ignore_index=-1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, seen = total + loss.item(), seen + 1
        model.weight = torch.tensor([0.5, 1.0, 2.0 + epoch])
        print(f"{type(model).__name__} epoch {epoch} loss {total / seen:.10f} features {h.sum().item():.10f}")
