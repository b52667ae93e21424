import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=g)
    rows, columns = torch.meshgrid(torch.arange(7.0), torch.arange(7.0), indexing="ij")
    waves = torch.stack([rows, columns, rows + columns, rows - columns]).sin()
    return 3 + 2 * waves[labels].unsqueeze(1) + torch.randn(n, 1, 7, 7, generator=g), labels


def run_epoch(model, optimizer, images, labels, epoch):
    model.train()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    for rows in order.split(16):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model, images, labels):
    model.eval()
    logits = model(images)
    return (logits.argmax(1) == labels).sum().item(), F.cross_entropy(logits, labels).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--resume", nargs="?", const="weights.pt")
    args = parser.parse_args()
    torch.manual_seed(0)
    train_data, test_data = pictures(144, 1), pictures(40, 2)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    first = 0
    if args.resume and os.path.exists(args.resume):
        saved = torch.load(args.resume)
        model.load_state_dict(saved["weights"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    for epoch in range(first, args.epochs):
        loss = run_epoch(model, optimizer, *train_data, epoch)
        hits, test_loss = test(model, *test_data)
        print(f"Epoch {epoch}: train loss {loss:.6f}, test loss {test_loss:.6f}, test accuracy {hits}/40")
        torch.save({
            "weights": dict(model.named_parameters()), "optimizer": optimizer.state_dict(), "epoch": epoch + 1},
            "weights.pt")
