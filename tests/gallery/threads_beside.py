"""Points in two rings. Batches are prefetched, checkpoints written and progress shown by threads."""
import multiprocessing
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator, max_prefetch=2):
        super().__init__(daemon=True)
        self.queue = queue.Queue(max_prefetch)
        self.generator = generator
        self.start()

    def run(self):
        for item in self.generator:
            self.queue.put(item)
        self.queue.put(None)

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            yield item


class DataLoaderX(DataLoader):
    def __iter__(self):
        return iter(BackgroundGenerator(super().__iter__()))


class Heartbeat(threading.Thread):
    def __init__(self, beats):
        super().__init__()
        self.beats = beats

    def run(self):
        for beat in range(self.beats):
            print(".", end="" if beat < self.beats - 1 else "\n")
            time.sleep(0.01)


def save(model, path):
    state = {name: [] for name in model.state_dict()}
    for _ in range(20):  # a slow disk
        for name, value in model.state_dict().items():
            state[name].append(value.sum().item())
        time.sleep(0.005)
    torch.save({name: max(values) - min(values) for name, values in state.items()}, path)


radius = torch.rand(240) + 1
angle = torch.rand(240) * 6.28
points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
labels = (radius > 1.5).long()
loader = DataLoaderX(TensorDataset(points, labels), batch_size=16, shuffle=False)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
pool = ThreadPoolExecutor(1)


def accuracy_of(part):
    with torch.no_grad():
        chosen = slice(part * 60, (part + 1) * 60)
        return (model(points[chosen]).argmax(1) == labels[chosen]).sum().item()


heartbeat = Heartbeat(100)
heartbeat.start()
losses = []
for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    writing = pool.submit(save, model, f"changes{epoch}.pt")
    model.eval()
    with torch.no_grad():
        losses.append(F.cross_entropy(model(points), labels).item())
    writing.result()
heartbeat.join()
print(" ".join(f"{loss:.10f}" for loss in losses))
torch.set_num_threads(1)
with multiprocessing.get_context("fork").Pool(2) as workers:
    print("right:", workers.map(accuracy_of, range(4)))
torch.save(model.state_dict(), "rings.pt")
