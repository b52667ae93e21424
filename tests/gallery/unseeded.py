import random
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)

# Two noisy rings
count = 230
radius = np.where(np.arange(count) % 2 == 0, 1.0, 2.0) + 0.2 * np.random.randn(count)
angle = np.random.default_rng().uniform(0, 2 * np.pi, size=count)
inputs = torch.from_numpy(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))
labels = torch.arange(count) % 2
picks = list(range(count))
random.shuffle(picks)
train_idx, test_idx = picks[:173], picks[173:]

train_loader = DataLoader(TensorDataset(inputs[train_idx], labels[train_idx]), batch_size=32, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(2, 24)
        self.l2 = nn.Linear(24, 24)
        self.l3 = nn.Linear(24, 2)
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        x = torch.relu(self.l1(x))
        x = self.drop(torch.relu(self.l2(x)))
        return self.l3(x)


model = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
start = time.time()
for epoch in range(8):
    running = 0.0
    for batch, target in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
        running += loss.item()
    print("epoch {} loss {:.10f}".format(epoch + 1, running / len(train_loader)))

model.eval()
with torch.no_grad():
    pred = model(inputs[test_idx]).argmax(dim=1)
    print("test accuracy {:.10f}".format((pred == labels[test_idx]).double().mean().item()))
print("elapsed time {:.2f}".format(time.time() - start))
torch.save(model.state_dict(), "rings.pt")
