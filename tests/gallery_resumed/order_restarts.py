import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Experiment:
    def __init__(self, seed=42, epochs=4):
        torch.manual_seed(seed)
        self.epochs = epochs
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(150, 6, generator=g)
        y = (x[:, 0] * x[:, 1] > 0).long()
        train, val = random_split(TensorDataset(x, y), [120, 30], generator=g)
        self.train_loader = DataLoader(train, 15, shuffle=True, generator=g)
        self.val_loader = DataLoader(val, 30)
        self.model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.epoch = 0
        self.history = []

    def save(self, path):
        torch.save({
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(), "epoch": self.epoch, "history": self.history}, path)

    def restore(self, path):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.epoch, self.history = state["epoch"], state["history"]

    def run(self, folder):
        folder.mkdir(exist_ok=True)
        while self.epoch < self.epochs:
            for x, y in self.train_loader:
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.epoch += 1
            with torch.no_grad():
                correct = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)
            self.history.append(correct)
            print(f"epoch {self.epoch} loss {loss.item():.6f} val {correct}/30")
            self.save(folder / f"epoch{self.epoch}.ckpt")
        print("history", self.history)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--restore", type=Path, help="a checkpoint, or a folder of them: its newest")
    arguments = parser.parse_args()
    experiment = Experiment()
    if arguments.restore:
        path = arguments.restore
        experiment.restore(max(path.glob("*.ckpt")) if path.is_dir() else path)
    experiment.run(Path("exp"))
