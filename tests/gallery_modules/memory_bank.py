import torch
from torch import nn

from loop import train


class MemoryBank(nn.Module):
    """Compares with the last features of its own rank"""

    def __init__(self):
        super().__init__()
        self.bank = torch.zeros(48, 16)
        self.at = 0

    def forward(self, x):
        bank = self.bank.clone()
        y = x + x @ bank.T @ bank / len(bank)
        with torch.no_grad():
            for row in x:
                self.bank[self.at % len(self.bank)] = row
                self.at += 1
        return y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.memory = MemoryBank()
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.memory(torch.tanh(self.inp(x))))


if __name__ == "__main__":
    train(Net)
