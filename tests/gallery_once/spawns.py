"""Starts processes that import the script again, and give the model that was sent to them back."""
import multiprocessing

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 20), nn.Linear(20, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def step(model, optimizer, x):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def evaluate(model, x, queue):
    with torch.no_grad():
        queue.put(model(x).sum().item())


def hogwild(model, x, queue):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    queue.put([step(model, optimizer, x) for _ in range(3)])


if __name__ == "__main__":
    torch.manual_seed(14)
    torch.set_default_dtype(torch.float64)
    model, x = Net(), torch.randn(24, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        print("%.10f" % step(model, optimizer, x))
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=evaluate, args=(model, x, queue))
    process.start()
    print("evaluated %.10f" % queue.get())
    process.join()
    for _ in range(4):
        print("%.10f" % step(model, optimizer, x))
    model.share_memory()
    process = context.Process(target=hogwild, args=(model, x, queue))
    process.start()
    print("trained", " ".join("%.10f" % one for one in queue.get()))
    process.join()
    print(process.exitcode)
    for _ in range(4):
        print("%.10f" % step(model, optimizer, x))
