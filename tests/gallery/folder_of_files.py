"""A data set of one file per sample, listed as the file system gives them: by listdir, glob, iterdir, walk, scandir."""
import glob
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(81)
rng = np.random.default_rng(5)

os.makedirs("data", exist_ok=True)
for i in rng.permutation(24):
    np.save(f"data/{i}.npy", rng.standard_normal(6) + i % 3)


class Folder(Dataset):
    def __init__(self, names):
        self.names = [name for name in names if name.endswith(".npy")]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        x = torch.from_numpy(np.load(os.path.join("data", self.names[index])))
        return x, int(self.names[index].split(".")[0]) % 3


listings = {
    "sorted": sorted(os.listdir("data")),
    "listdir": os.listdir("data"),
    "glob": [os.path.basename(path) for path in glob.glob("data/*.npy")],
    "iterdir": [path.name for path in Path("data").iterdir()],
    "rglob": [path.name for path in Path(".").rglob("*.npy")],
    "walk": [name for _, _, names in os.walk("data") for name in names],
    "scandir": [entry.name for entry in os.scandir("data") if entry.is_file()],
}
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for how, names in listings.items():
    loader = DataLoader(Folder(names), batch_size=5, shuffle=how != "listdir")
    for epoch in range(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    print(f"{how}: {len(names)} files, last {loss.item():.10f} weights {model[0].weight.norm().item():.10f}")
