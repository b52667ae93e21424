"""Calls models in threads: each its own, all the same one, and one in turns."""
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

torch.manual_seed(4)
torch.set_default_dtype(torch.float64)


def network():
    return nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 2))


def step(model, optimizer, x):
    loss = (model(x) - x[:, :2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# Each thread its own model, all at once.
models = [network() for _ in range(3)]
data = [torch.randn(20, 6) for _ in models]
gate = threading.Barrier(3)
found = [[] for _ in models]


def alone(number):
    optimizer = torch.optim.Adam(models[number].parameters(), lr=0.01)
    for _ in range(12):
        gate.wait()
        found[number].append(step(models[number], optimizer, data[number]))


threads = [threading.Thread(target=alone, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for losses in found:
    print(" ".join("%.10f" % loss for loss in losses))

# All threads the same model, with weights that stay as they are; a hook counts the gradients.
shared = nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
hooked = []
shared[0].weight.register_hook(lambda gradient: hooked.append(1))
parts = torch.randn(120, 16, 6)


def gradient(part):
    loss = (shared(part) - part[:, :2]).square().mean()
    return [one.sum().item() for one in torch.autograd.grad(loss, list(shared.parameters()))]


with ThreadPoolExecutor(3) as pool:
    for gradients in pool.map(gradient, parts):
        print("%.10f" % sum(gradients))
print("gradients", len(hooked))

# The same model in turns, with batch norm and dropout: each thread waits for its turn.
model = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.Dropout(0.3), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
turns = [queue.Queue(), queue.Queue()]
losses = []


def in_turns(number):
    while (left := turns[number].get()) >= 0:
        losses.append(step(model, optimizer, data[number]))
        turns[1 - number].put(left - 1)
    turns[1 - number].put(-1)


threads = [threading.Thread(target=in_turns, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
turns[0].put(15)
for thread in threads:
    thread.join()
print(" ".join("%.10f" % loss for loss in losses))
print("%.10f" % model[1].running_var.sum().item(), model[1].num_batches_tracked.item())
