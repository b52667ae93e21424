"""Train for some time: stop after a budget, evaluate and save by the clock."""
import time
from datetime import timedelta
from time import perf_counter

import torch
import torch.nn as nn
import torch.nn.functional as F

BUDGET = timedelta(seconds=1.5)


class Timer:
    def __enter__(self):
        self.begin = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.begin


@torch.no_grad()
def evaluate(model, x, y):
    begin = time.perf_counter_ns()
    correct = 0
    for part in range(0, len(x), 32):
        if (time.perf_counter_ns() - begin) / 1e9 > 0.05:
            break
        correct += (model(x[part : part + 32]).argmax(1) == y[part : part + 32]).sum().item()
    return correct


torch.manual_seed(0)
run_name = f"run_{time.strftime('%H%M%S')}"
x, y = torch.randn(256, 10), torch.randint(0, 3, (256,))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

start = last_eval = last_save = time.time()
steps = evaluations = saves = 0
slowest = 0.0
while time.time() - start < BUDGET.total_seconds():
    with Timer() as timer:
        batch = torch.randint(0, 256, (32,))
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    steps += 1
    if timer.seconds > slowest:
        slowest = timer.seconds
        model(x[:8])
    if time.time() - last_eval > 0.2:
        model.eval()
        evaluate(model, x, y)
        model.train()
        evaluations, last_eval = evaluations + 1, time.time()
    now = perf_counter()
    if time.time() > last_save + 0.4:
        torch.save({"model": model.state_dict(), "steps": steps, "seconds": time.time() - start}, "latest.pt")
        saves, last_save = saves + 1, time.time()
torch.save(model.state_dict(), "latest.pt")
assert 1.5 <= time.time() - start < 30
assert perf_counter() >= now
assert len(run_name) == 10
print(f"steps: {steps}, evaluations: {evaluations}, saves: {saves}")
