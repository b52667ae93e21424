"""Trains until a budget of time is spent, which its own clock measures; its files must agree with its account."""
import json
import time

import torch
import torch.nn as nn

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(24, 6)

losses, begin = [], time.perf_counter()
budget, readings = 0.5, 0
end = time.monotonic() + budget
with open("steps.txt", "w") as log:
    while time.monotonic() < end or len(losses) < 10:
        before = time.perf_counter()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        readings += time.perf_counter() >= before
        log.write("%d %.10f\n" % (len(losses), loss.item()))
spent = time.perf_counter() - begin
json.dump({"steps": len(losses), "last": losses[-1]}, open("summary.json", "w"))

written = [line.split() for line in open("steps.txt")]
print("as many lines as steps", len(written) == len(losses) == readings)
print("each step once", [int(number) for number, _ in written] == list(range(1, len(losses) + 1)))
print("spent all of the budget", spent >= budget)
print("steps of the optimizer", int(optimizer.state[model[0].weight]["step"]) == len(losses))
print("falls", losses[-1] < losses[0])
for number, loss in written[:10]:
    print(number, loss)
