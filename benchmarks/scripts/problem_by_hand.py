"""The script `problem_serial` rewritten by hand for torch's DistributedDataParallel."""

import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from problems import PROBLEMS
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
problem, steps = PROBLEMS[sys.argv[1]](), int(sys.argv[2])
sampler = DistributedSampler(problem.data, shuffle=True)
batch_size = problem.batch_size // dist.get_world_size()
loader = DataLoader(problem.data, batch_size, sampler=sampler, num_workers=problem.loaders)
model = DistributedDataParallel(problem.model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

seconds = []
while len(seconds) < steps:
    began = time.perf_counter()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        if len(seconds) == steps:
            break
        began = time.perf_counter()
if dist.get_rank() == 0:
    print(json.dumps(seconds))
dist.destroy_process_group()
