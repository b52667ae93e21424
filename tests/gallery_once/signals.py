"""Gets signals while it trains: timers that interrupt, one that raises, one that asks for a checkpoint."""
import os
import signal
import threading

import torch
import torch.nn as nn

torch.manual_seed(10)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(24, 6)


def step():
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# A timer that goes off all the time.
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(threading.current_thread() is threading.main_thread()))
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for number in range(30):
    loss = step()
    if number % 6 == 5:
        print(number, "%.10f" % loss)
while len(ticks) < 4:  # a fast machine takes all steps before
    signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
print("ticks", all(ticks))

# A signal of its own asks for a checkpoint, which the next step writes; handlers nest.
asked = []
signal.signal(signal.SIGUSR1, lambda *_: (asked.append(1), os.kill(os.getpid(), signal.SIGUSR2)))
signal.signal(signal.SIGUSR2, lambda *_: asked.append(2))
for number in range(8):
    if number % 4 == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
    loss = step()
    if asked:
        torch.save(model.state_dict(), "asked%d.pt" % number)
        print("checkpoint", number, asked, "%.10f" % loss)
        asked.clear()


# A limit of time that ends an evaluation by an error, at any place.
class TooLate(Exception):
    pass


def raise_too_late(*_):
    raise TooLate


signal.signal(signal.SIGALRM, raise_too_late)
for attempt in range(12):
    model.eval()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.0037 * attempt)
        while True:
            out = model(x.clone().requires_grad_()).square().mean()
            torch.autograd.grad(out, [model[0].weight])
    except TooLate:
        pass
    model.train()
    print(attempt, "%.10f" % step())

# A handler that calls the model.
seen = []


def evaluate(*_):
    with torch.no_grad():
        seen.append(model(x[:12]).shape)
    signal.setitimer(signal.ITIMER_REAL, 0.004)


signal.signal(signal.SIGALRM, evaluate)
model.eval()
signal.setitimer(signal.ITIMER_REAL, 0.004)
while len(seen) < 10:
    with torch.no_grad():
        value = model(x).sum().item()
signal.setitimer(signal.ITIMER_REAL, 0)
print("%.10f" % value, {tuple(one) for one in seen})
model.train()
print("%.10f" % step())
