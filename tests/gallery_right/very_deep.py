"""200 tanh layers without normalization: the rounding of the mean over the ranks grows from layer to layer."""
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rng = np.random.RandomState(0)
    x = torch.from_numpy(rng.randn(96, 24).astype(np.float32))
    y = torch.from_numpy(rng.randint(0, 4, 96))
    torch.manual_seed(0)
    layers = []
    for _ in range(200):
        layer = nn.Linear(24, 24, bias=False)
        nn.init.normal_(layer.weight, std=1.4 / 24**0.5)  # in the chaotic regime of a tanh network
        layers += [layer, nn.Tanh()]
    model = DDP(nn.Sequential(*layers, nn.Linear(24, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(8):
        batch = torch.arange(step % 4 * 24, step % 4 * 24 + 24)[rank::world]
        mean = x[batch].sum(0)
        dist.all_reduce(mean)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[batch] - mean / 24), y[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
