"""Forks before and during training; the children evaluate, train on, run a backward of their parent, and write."""
import multiprocessing
import os
import threading

import torch
import torch.nn as nn

torch.manual_seed(6)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Dropout(0.1), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(24, 6)


def step():
    loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def evaluated():
    model.eval()
    with torch.no_grad():
        value = model(x).sum().item()
    model.train()
    return value


def in_child(work):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, ("%.10f" % work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    return child, reads


def answer(child, reads):
    with open(reads) as stream:
        text = stream.read()
    return text, os.waitpid(child, 0)[1]


print("before", *answer(*in_child(evaluated)))
children = []
for number in range(12):
    loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
    if number in (3, 7):
        # The child has the graph of a call of its parent.
        def backward():
            loss.backward()
            optimizer.step()
            return step() + evaluated()

        children.append(in_child(backward))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, "%.10f" % loss.item())
    if number in (4, 8):
        children += [in_child(evaluated), in_child(lambda: sum(step() for _ in range(3)))]
for child in children:
    print("child", *answer(*child))


def saved(number, queue):
    losses = [step() for _ in range(number)]
    torch.save(model.state_dict(), "child%d.pt" % number)
    queue.put((number, losses[-1]))


context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
processes = [context.Process(target=saved, args=(number, queue)) for number in (2, 4)]
for process in processes:
    process.start()
print("%.10f" % step())
for number, loss in sorted(queue.get() for _ in processes):
    print(number, "%.10f" % loss)
for process in processes:
    process.join()
    print(process.exitcode)
print("left", multiprocessing.active_children())


def score(number):
    with torch.no_grad():
        return model.eval()(x[number : number + 8]).sum().item()


with context.Pool(2) as pool:
    for value in pool.map(score, range(0, 24, 8)):
        print("%.10f" % value)
model.train()
print("%.10f" % step())

# Another thread trains a model of its own while this one forks.
other = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
over = threading.Event()


def train_other():
    own = torch.optim.SGD(other.parameters(), lr=0.01)
    while not over.is_set():
        error = (other(x) - x.sum(1, keepdim=True)).square().mean()
        own.zero_grad()
        error.backward()
        own.step()


loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
thread = threading.Thread(target=train_other)
thread.start()
for number in range(8):
    def gradient():
        loss.backward()
        return model[0].weight.grad.sum().item()

    optimizer.zero_grad()
    print("beside", *answer(*in_child(gradient)))
over.set()
thread.join()
print("%.10f" % step())
