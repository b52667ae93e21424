"""Classify noisy waveforms with a small multi-layer perceptron."""
import argparse
import os
import shutil
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class Waveforms(Dataset):
    """Sines, squares and sawtooths of random phase."""

    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        t, phase = torch.linspace(0, 1, 24), torch.rand(size, 1, generator=g)
        self.target = torch.randint(3, (size,), generator=g)
        sine = torch.sin(6.28 * (2 * t + phase))
        saw = 2 * ((2 * t + phase) % 1.0) - 1
        waves = torch.stack([sine, sine.sign(), saw], dim=1)
        self.data = waves[torch.arange(size), self.target] + 0.3 * torch.randn(size, 24, generator=g)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], int(self.target[index])


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(24, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 3)

    def forward(self, x):
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        return F.log_softmax(self.fc3(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.to(device)), target.to(device))
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print("Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.10f}".format(
                epoch, batch_idx * len(data), len(train_loader.dataset),
                100. * batch_idx / len(train_loader), loss.item()))


def test(model, device, test_loader):
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in test_loader:
            output, target = model(data.to(device)), target.to(device)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    print("\nTest set: Average loss: {:.10f}, Accuracy: {}/{} ({:.10f}%)\n".format(
        test_loss, correct, len(test_loader.dataset), 100. * correct / len(test_loader.dataset)))
    return test_loss


def main():
    parser = argparse.ArgumentParser(description="Waveform classification")
    parser.add_argument("--batch-size", type=int, default=50, metavar="N")
    parser.add_argument("--epochs", type=int, default=5, metavar="N")
    parser.add_argument("--lr", type=float, default=0.1, metavar="LR")
    parser.add_argument("--gamma", type=float, default=0.7, metavar="M")
    parser.add_argument("--log-interval", type=int, default=2, metavar="N")
    args = parser.parse_args()

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    device = torch.device("cpu")
    os.makedirs("checkpoints", exist_ok=True)

    train_loader = DataLoader(Waveforms(407, 10), batch_size=args.batch_size, shuffle=True, num_workers=0)
    test_loader = DataLoader(Waveforms(113, 11), batch_size=args.batch_size, num_workers=0)
    model = Net(48).to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    best = float("inf")
    for epoch in range(1, args.epochs + 1):
        tic = time.time()
        train(args, model, device, train_loader, optimizer, epoch)
        loss = test(model, device, test_loader)
        scheduler.step()
        latest = "checkpoints/checkpoint.pth.tar"
        torch.save({"epoch": epoch, "loss": loss, "state_dict": model.state_dict()}, latest)
        if loss < best:
            best = loss
            shutil.copyfile(latest, "checkpoints/model_best.pth.tar")
        print("epoch time: {:.3f}s".format(time.time() - tic))
    print("Best test loss: {:.10f}".format(best))


if __name__ == "__main__":
    main()
