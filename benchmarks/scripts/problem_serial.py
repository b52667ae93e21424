"""A serial training script of one of `problems`, which prints the seconds of each of its steps as JSON."""

import json
import sys
import time

import torch
import torch.nn.functional as F
from problems import PROBLEMS
from torch.utils.data import DataLoader

torch.manual_seed(0)
problem, steps = PROBLEMS[sys.argv[1]](), int(sys.argv[2])
loader = DataLoader(problem.data, problem.batch_size, shuffle=True, num_workers=problem.loaders)
optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.01, momentum=0.9)

seconds = []
while len(seconds) < steps:
    began = time.perf_counter()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(problem.model(inputs), targets)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        if len(seconds) == steps:
            break
        began = time.perf_counter()
print(json.dumps(seconds))
