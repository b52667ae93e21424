"""`ddp.py` in mixed precision: float16 with loss scaling on GPUs, bfloat16 on CPUs.

Run it as `ddp.py`. Weights, gradients and their all-reduce stay in float32.
"""

import ddp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from options import parsed, training_parser
from place import find_place
from torch import nn
from torch.utils.data import DataLoader


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device
) -> float:
    """Return the mean loss of the epoch's global batches."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    # >>> precision
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    # float16 has 5 bits of exponent: gradients below 6e-8 would be 0 if the loss were not scaled up.
    # bfloat16 has the 8 bits of float32 and needs no scaling. One scaler per epoch finds its scale again.
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    # <<<
    for images, labels in loader:
        # >>> precision
        with torch.autocast(device.type, dtype):  # the forward only; backward uses the same types
            scores = model(images.to(device))
            loss = F.cross_entropy(scores, labels.to(device))
        # <<<
        optimizer.zero_grad()
        # >>> precision
        scaler.scale(loss).backward()  # the gradients are averaged scaled, so all ranks see the same overflow
        scaler.step(optimizer)  # skipped on all ranks if a gradient is infinite
        scaler.update()
        # <<<
        loss_sum += loss.detach()
    dist.all_reduce(loss_sum)
    return loss_sum.item() / len(loader) / dist.get_world_size()


if __name__ == "__main__":
    options = parsed(training_parser("Train on MNIST in mixed precision.", batch_size=96, lr=0.05))
    ddp.main(options, find_place(), train_epoch)
