"""Models that treat samples together from a step on: the switch is a value in an array, a tensor or a buffer."""
from array import array

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(31)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.switch = self.make()

    def forward(self, x):
        h = self.body(x).tanh()
        return self.head(h - h.mean(0) if self.is_on() else h)

    def is_on(self):
        return self.switch[0]

    def turn_on(self):
        self.switch[0] = 1


class InArray(Net):
    def make(self):
        return np.zeros(1)


class InTensor(Net):
    def make(self):
        return torch.zeros(1)


class InBytes(Net):
    def make(self):
        return bytearray(1)


class InNumbers(Net):
    def make(self):
        return array("d", [0.0])


class InStorage(Net):
    def make(self):
        return torch.zeros(1).untyped_storage()


class InBuffer(Net):
    """As in vector quantization: a buffer of one floating-point number says whether the codes are there."""

    def make(self):
        self.register_buffer("has_codes", torch.tensor([False]).double())

    def is_on(self):
        return bool(self.has_codes)

    def turn_on(self):
        self.has_codes.fill_(1)


class AsFactor(Net):
    def make(self):
        return np.zeros(1)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.head(h - float(self.switch[0]) * h.mean(0))


for kind in (InArray, InTensor, InBytes, InNumbers, InStorage, InBuffer, AsFactor):
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        if step == 2:
            model.turn_on()
        x = torch.randn(15, 8)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
        loss.backward()
        optimizer.step()
    print(f"{kind.__name__}: {loss.item():.10f}")
