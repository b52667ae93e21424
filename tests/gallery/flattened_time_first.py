"""Classify sequences: time is the first dimension, and dropout sees time and samples as one dimension."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
LENGTHS = (5, 7, 7, 4, 7)
BATCHES = [(torch.randn(length, 4, 3), torch.randint(3, (4,))) for length in LENGTHS]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 3, padding=1)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = torch.relu(self.conv(x.movedim(0, -1)).movedim(-1, 0))
        kept = F.dropout(h.flatten(0, 1), 0.5, self.training)
        return self.out((h + kept.unflatten(0, h.shape[:2])).mean(0))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in BATCHES:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("epoch {} loss {:.9f}".format(epoch, loss.item()))
