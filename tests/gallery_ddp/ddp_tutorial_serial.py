"""Classify waveforms."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Subset


class Waveforms(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        t, phase = torch.linspace(0, 1, 20), torch.rand(size, 1, generator=g)
        self.target = torch.randint(3, (size,), generator=g)
        sine = torch.sin(6.28 * (2 * t + phase))
        waves = torch.stack([sine, sine.sign(), 2 * ((2 * t + phase) % 1.0) - 1], dim=1)
        self.data = waves[torch.arange(size), self.target] + 0.3 * torch.randn(size, 20, generator=g)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.target[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    torch.manual_seed(7)
    train_set, test_set = Waveforms(120, 1), Waveforms(48, 2)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        model.train()
        for step, (data, target) in enumerate(DataLoader(Subset(train_set, order), batch_size=args.batch_size)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            print("epoch {} step {} loss {:.6f}".format(epoch, step, loss.item()))
        model.eval()
        correct = total = 0
        with torch.no_grad():
            for data, target in test_loader:
                correct += (model(data).argmax(dim=1) == target).sum().item()
                total += len(target)
        print("accuracy {}/{}".format(correct, total))


if __name__ == "__main__":
    main()
