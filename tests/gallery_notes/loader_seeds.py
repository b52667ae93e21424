import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, n=64):
        self.x = np.random.RandomState(0).randn(n, 6).astype("float32")
        self.y = (self.x.sum(1) > 0).astype("int64")
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = self.rng.normal(scale=0.1, size=6).astype("float32")
        return self.x[i] + noise, self.y[i]


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Noisy(), batch_size=8, num_workers=2)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "loss", loss.item())
