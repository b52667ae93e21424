"""Prepares its data once, by SQLite, NumPy's memory maps, zip files and a program, and reads them in training."""
import os
import sqlite3
import subprocess
import sys
import zipfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(2)
torch.set_default_dtype(torch.float64)
prepared = []

if not os.path.exists("data.db"):
    prepared.append("database")
    database = sqlite3.connect("data.db")
    with database:
        database.execute("create table samples (number integer primary key, x blob, y real)")
        for number in range(48):
            x = torch.randn(6)
            database.execute("insert into samples values (?, ?, ?)", (number, x.numpy().tobytes(), x.sum().item()))
    database.close()

if not os.path.exists("noise.dat"):
    prepared.append("memory map")
    noise = np.memmap("noise.dat", dtype=np.float64, mode="w+", shape=(48, 6))
    noise[:] = torch.randn(48, 6).numpy() * 0.1
    noise.flush()
    del noise

if not os.path.exists("masks.zip"):
    prepared.append("archive")
    with zipfile.ZipFile("masks.zip", "x", zipfile.ZIP_DEFLATED) as archive:
        for number in range(48):
            archive.writestr("%d.txt" % number, " ".join(map(str, torch.randint(0, 2, (6,)).tolist())))

if not os.path.exists("weights.txt"):
    prepared.append("program")
    # Appends: a second run of the program would be seen.
    program = "open('weights.txt', 'a').write(' '.join(str(1 + n % 3) for n in range(48)) + '\\n')"
    subprocess.run([sys.executable, "-S", "-c", program], check=True)
print("prepared", prepared, len(open("weights.txt").readlines()))


class Samples(Dataset):
    def __init__(self):
        self.database = sqlite3.connect("data.db")
        self.noise = np.memmap("noise.dat", dtype=np.float64, mode="r+", shape=(48, 6))
        self.archive = zipfile.ZipFile("masks.zip")
        self.weights = [float(one) for one in open("weights.txt").readline().split()]

    def __len__(self):
        return 48

    def __getitem__(self, number):
        x, y = self.database.execute("select x, y from samples where number = ?", (number,)).fetchone()
        mask = np.array(self.archive.read("%d.txt" % number).split(), dtype=np.float64)
        x = np.frombuffer(x) + self.noise[number] * mask
        self.noise[number] *= 0.9  # written through the map: twice as much if two processes did it
        return torch.from_numpy(x), torch.tensor([y]), torch.tensor([self.weights[number]])


samples = Samples()
model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = sqlite3.connect("losses.db", isolation_level=None)
losses.execute("create table if not exists losses (step integer, loss real)")
for epoch in range(3):
    for x, y, weight in DataLoader(samples, batch_size=12, shuffle=True):
        loss = (weight * (model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.execute("insert into losses values ((select count(*) from losses), ?)", (loss.item(),))
for step, loss in losses.execute("select * from losses order by step"):
    print(step, "%.10f" % loss)
samples.noise.flush()
print("noise %.12f" % np.memmap("noise.dat", dtype=np.float64, mode="r").sum())
