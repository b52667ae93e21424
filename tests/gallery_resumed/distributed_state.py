"""fully_shard with distributed checkpoints: resumes by itself, if there is a complete one."""
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.step = state["step"]


init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
fully_shard(model[0])
fully_shard(model)
app = AppState(model, torch.optim.Adam(model.parameters(), 0.01))
if os.path.exists("checkpoint/.metadata"):
    dcp.load({"app": app}, checkpoint_id="checkpoint")
for step in range(app.step, 24):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))[rank::world]
    loss = F.mse_loss(model(x), x.flip(1))
    loss.backward()
    app.optimizer.step()
    app.optimizer.zero_grad()
    app.step = step + 1
    if app.step % 4 == 0:
        dcp.save({"app": app}, checkpoint_id="checkpoint")
dist.destroy_process_group()
