import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, n=144):
        rng = np.random.RandomState(4)
        self.x = rng.randn(n, 9, 4).astype(np.float32)
        self.y = (self.x.sum((1, 2)) > 0).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), torch.tensor(self.y[i])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 12, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.drop(self.rnn(x)[0][:, -1])).squeeze(1)


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state():
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def set_rng_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def train(epochs=4, ckpt="checkpoint.pt", every=5):
    seed_all(2024)
    model = Classifier()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(Sequences(), batch_size=12, shuffle=True)
    start_epoch = start_batch = 0
    if os.path.exists(ckpt):
        state = torch.load(ckpt, weights_only=False)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        set_rng_state(state["rng"])
        start_epoch, start_batch = state["epoch"], state["batch"]
        print(f"continue with epoch {start_epoch} batch {start_batch}")
    for epoch in range(start_epoch, epochs):
        for i, (x, y) in enumerate(loader):
            if epoch == start_epoch and i < start_batch:
                continue
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if (i + 1) % every == 0:
                torch.save({
                    "model": model.state_dict(), "opt": opt.state_dict(), "rng": rng_state(),
                    "epoch": epoch, "batch": i + 1}, ckpt)
        print(f"epoch {epoch} last loss {loss.item():.6f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    train()
