import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data = torch.randn(48, 8)
to_write, written = threading.Lock(), threading.Lock()


def write(step):
    with written:
        time.sleep(0.2)
        with to_write:
            print("step", step)


model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    batch = data[8 * step : 8 * step + 8][rank::world]
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    if step == 2 and rank == 1:
        with to_write:
            threading.Thread(target=write, args=(step,), daemon=True).start()
            time.sleep(0.1)
            with written:  # <- fault
                pass
dist.destroy_process_group()
