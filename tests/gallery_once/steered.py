"""Reads lines from the standard input that steer the run, by input() and by sys.stdin."""
import sys

import torch
import torch.nn as nn

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 6)
y = torch.randint(0, 3, (16,))
done = 0
print(input("name of the run? "))
while True:
    try:
        command, *values = input("> ").split()
    except EOFError:
        print("no more commands")
        break
    if command == "lr":
        optimizer.param_groups[0]["lr"] = float(values[0])
    elif command == "steps":
        for _ in range(int(values[0])):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
        print(done, "%.10f" % loss.item())
    elif command == "save":
        torch.save(model.state_dict(), values[0])
    elif command == "data":
        x = torch.tensor([[float(one) for one in sys.stdin.readline().split()] for _ in range(int(values[0]))])
        y = y[: len(x)]
    elif command == "debug":
        breakpoint()
print(done, "steps", repr(sys.stdin.read()))
