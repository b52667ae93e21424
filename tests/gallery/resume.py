"""Trains for two more epochs at each start; goes on from checkpoint.pt if there is one."""
import csv
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"
LOG = "log.csv"
EPOCHS_PER_RUN = 2

torch.set_default_dtype(torch.float64)
torch.manual_seed(20)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(6, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(12 * 16, 4))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def quadrants(n):
    y = torch.randint(4, (n,))
    x = 0.7 * torch.randn(n, 1, 8, 8)
    for i in range(n):
        r, c = divmod(int(y[i]), 2)
        x[i, :, 4 * r:4 * r + 4, 4 * c:4 * c + 4] += torch.rand(1) * 0.8
    return TensorDataset(x, y)


train_set, test_set = quadrants(211), quadrants(87)
test_loader = DataLoader(test_set, batch_size=40)

model = SmallCNN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
start_epoch, best_acc = 0, 0.0

if os.path.isfile(CHECKPOINT):
    print("=> loading checkpoint '{}'".format(CHECKPOINT))
    checkpoint = torch.load(CHECKPOINT, map_location=device)
    start_epoch = checkpoint["epoch"]
    best_acc = checkpoint["best_acc"]
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    print("=> loaded checkpoint (epoch {}, best accuracy {:.10f})".format(start_epoch, best_acc))
else:
    print("=> no checkpoint found at '{}'".format(CHECKPOINT))
    with open(LOG, "w", newline="") as f:
        csv.writer(f).writerow(["epoch", "train_loss", "test_loss", "test_acc"])

for epoch in range(start_epoch, start_epoch + EPOCHS_PER_RUN):
    torch.manual_seed(1000 + epoch)
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    model.train()
    train_loss = 0.0
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_loss += loss.item() * len(x)
        if step % 3 == 0:
            print("epoch {} step {} loss {:.10f}".format(epoch, step, loss.item()))
    scheduler.step()
    train_loss /= len(train_set)

    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in test_loader:
            out = model(x.to(device))
            test_loss += F.cross_entropy(out, y.to(device), reduction="sum").item()
            correct += (out.argmax(1).cpu() == y).sum().item()
    test_loss, acc = test_loss / len(test_set), correct / len(test_set)
    best_acc = max(acc, best_acc)
    print("epoch {}: train {:.10f} test {:.10f} accuracy {:.10f}".format(epoch, train_loss, test_loss, acc))

    with open(LOG, "a", newline="") as f:
        csv.writer(f).writerow([epoch] + ["%.10f" % v for v in (train_loss, test_loss, acc)])
    torch.save({
        "epoch": epoch + 1,
        "best_acc": best_acc,
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }, CHECKPOINT)
