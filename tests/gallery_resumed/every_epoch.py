import argparse
import csv
import os
import random
import shutil

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="classifies small pictures")
parser.add_argument("--epochs", default=5, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--seed", default=1, type=int)
parser.add_argument("--resume", default="", type=str, metavar="PATH", help="latest checkpoint")


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 8, 8, generator=g)
    y = (x[:, 0, :4].sum((1, 2)) > x[:, 0, 4:].sum((1, 2))).long()
    return TensorDataset(x, y)


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


def train(loader, model, criterion, optimizer):
    model.train()
    total = 0.0
    for images, target in loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def validate(loader, model):
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, target in loader:
            correct += (model(images).argmax(1) == target).sum().item()
    return 100 * correct / len(loader.dataset)


def main():
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(8 * 64, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    start_epoch, best_acc1 = 0, 0.0

    if args.resume:
        if not os.path.isfile(args.resume):
            raise SystemExit(f"no checkpoint found at '{args.resume}'")
        print(f"=> loading checkpoint '{args.resume}'")
        checkpoint = torch.load(args.resume, weights_only=False)
        start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        random.setstate(checkpoint["python"])
        np.random.set_state(checkpoint["numpy"])
        torch.set_rng_state(checkpoint["torch"])
        generator.set_state(checkpoint["generator"])
        print(f"=> loaded checkpoint '{args.resume}' (epoch {start_epoch})")

    train_loader = DataLoader(pictures(128, 1), args.batch_size, shuffle=True, generator=generator)
    val_loader = DataLoader(pictures(50, 2), 20)
    for epoch in range(start_epoch, args.epochs):
        loss = train(train_loader, model, criterion, optimizer)
        scheduler.step()
        acc1 = validate(val_loader, model)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        print(f"Epoch: [{epoch}] loss {loss:.6f} Acc@1 {acc1:.3f} (best {best_acc1:.3f})")
        with open("log.csv", "a") as f:
            csv.writer(f).writerow([epoch, f"{loss:.6f}", f"{acc1:.3f}"])
        save_checkpoint({
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "best_acc1": best_acc1,
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "generator": generator.get_state(),
        }, is_best)


if __name__ == "__main__":
    main()
