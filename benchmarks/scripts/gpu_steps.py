"""Trains with DistributedDataParallel on one device per rank; rank 0 prints seconds per step."""

import argparse
import os
import time
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from samestep.training.networks import build

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--model", default="resnet9")
parser.add_argument("--batch-size", type=int, default=512)
parser.add_argument("--turns", type=int, default=10)
parser.add_argument("--steps", type=int, default=20)
options = parser.parse_args()

backends = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}
dist.init_process_group(backends[options.device])
device = torch.device(options.device)
if device.type != "cpu":
    device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(device.index)
torch.manual_seed(0)
model = DistributedDataParallel(build(options.model, shape=(3, 32, 32), classes=10).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images = torch.randn(options.batch_size, 3, 32, 32, device=device)
labels = torch.randint(0, 10, (options.batch_size,), device=device)


def seconds_of_turn() -> float:
    began = time.perf_counter()
    for _ in range(options.steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()  # waits for the device
    return (time.perf_counter() - began) / options.steps


seconds_of_turn()  # warm-up
taken = median(seconds_of_turn() for _ in range(options.turns))
if dist.get_rank() == 0:
    print(f"step_s {taken:.9f}", flush=True)
dist.destroy_process_group()
