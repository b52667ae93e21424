"""DistributedDataParallel, with torchrun's variables."""

import torch.distributed as dist
from ddp_task import train

dist.init_process_group("gloo")
train()
