"""Predicts a click from a few numbers and two categories; large batches by accumulating gradients."""
import json
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(2024)

MICRO_BATCH = 17
ACCUM_STEPS = 4
EPOCHS = 5


def clicks(n):
    numbers = torch.randn(n, 6)
    country = torch.randint(0, 9, (n,))
    device = torch.randint(0, 4, (n,))
    score = numbers[:, 0] - 0.5 * numbers[:, 1] * numbers[:, 2] + 0.4 * (country % 3) - 0.7 * (device == 2)
    clicked = (score + 0.3 * torch.randn(n) > 0.2).double()
    return TensorDataset(numbers, torch.stack([country, device], dim=1), clicked)


class TabularNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_country = nn.Embedding(9, 4)
        self.embed_device = nn.Embedding(4, 3)
        self.net = nn.Sequential(
            nn.Linear(6 + 4 + 3, 32), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(32, 16), nn.ReLU(),
            nn.Linear(16, 1),
        )

    def forward(self, numbers, categories):
        embedded = [self.embed_country(categories[:, 0]), self.embed_device(categories[:, 1])]
        return self.net(torch.cat([numbers] + embedded, dim=1)).squeeze(1)


# 214 = 12 * 17 + 10, so that 13 micro-batches make three full steps and a small one
train_loader = DataLoader(clicks(214), batch_size=MICRO_BATCH, shuffle=True)
valid_loader = DataLoader(clicks(90), batch_size=50)
model = TabularNet()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
start = time.perf_counter()
updates = 0
log = []

for epoch in range(EPOCHS):
    model.train()
    optimizer.zero_grad()
    running = 0.0
    for i, (numbers, categories, target) in enumerate(train_loader):
        loss = criterion(model(numbers, categories), target)
        running += loss.item()
        loss = loss / ACCUM_STEPS
        loss.backward()
        if (i + 1) % ACCUM_STEPS == 0:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            print(f"update {updates}: loss {running / ACCUM_STEPS:.10f}")
            running = 0.0
    if len(train_loader) % ACCUM_STEPS != 0:
        optimizer.step()
        optimizer.zero_grad()
        updates += 1

    model.eval()
    losses, right = [], 0
    with torch.no_grad():
        for numbers, categories, target in valid_loader:
            logits = model(numbers, categories)
            losses.append(criterion(logits, target))
            right += ((logits > 0) == (target > 0.5)).sum().item()
    valid_loss = torch.stack(losses).mean().item()
    print(f"epoch {epoch}: valid loss {valid_loss:.10f}, accuracy {right / 90:.10f}")
    log.append({"epoch": epoch, "updates": updates, "valid_loss": valid_loss, "accuracy": right / 90})

with open("log.json", "w") as f:
    json.dump(log, f)
print(f"done, {time.perf_counter() - start:.1f} seconds")
