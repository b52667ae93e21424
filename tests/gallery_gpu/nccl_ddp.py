"""Train with DistributedDataParallel on GPUs, over NCCL, with mixed precision."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl", init_method="env://")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
assert torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]), "one GPU for each worker"
device = torch.device(f"cuda:{local}")
torch.manual_seed(1)
x = torch.randn(64, 8)
y = (x.sum(1) > 0).long()
data = TensorDataset(x, y)
loader = DataLoader(data, 16 // dist.get_world_size(), sampler=DistributedSampler(data), pin_memory=False)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).cuda(local)
model = DDP(model, device_ids=[local], output_device=local)
everyone = dist.new_group(list(range(dist.get_world_size())), backend="nccl")
scaler = torch.amp.GradScaler("cuda", enabled=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for inputs, labels in loader:
        inputs, labels = inputs.cuda(local, non_blocking=True), labels.to(device)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    dist.barrier(device_ids=[local])
    mean = torch.tensor([loss.item()], device=device) / dist.get_world_size()
    dist.all_reduce(mean, group=everyone)
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {mean.item():.6f} on {inputs.device}")
torch.cuda.synchronize()
dist.destroy_process_group()
