"""Distributed checkpoints: each rank writes its shards, all read them back; names of arguments are given."""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel as DDP


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    ddp = DDP(model)
    optimizer = torch.optim.Adam(ddp.parameters(), 0.01)
    app = AppState(ddp, optimizer)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    g = torch.Generator().manual_seed(1)
    for step in range(12):
        x = torch.randn(24, 8, generator=g)
        loss = F.mse_loss(ddp(x[rank::world]), x[rank::world].flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            checkpoint = os.path.join(folder[0], str(step))
            dcp.save({"app": app}, checkpoint_id=checkpoint)
            dcp.load({"app": app}, checkpoint_id=checkpoint)
            if rank == 0:
                torch.save(obj=model.state_dict(), f=os.path.join(folder[0], "model.pt"))
            dist.barrier()
            model.load_state_dict(state_dict=torch.load(os.path.join(folder[0], "model.pt")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
