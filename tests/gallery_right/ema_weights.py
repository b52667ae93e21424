"""An exponential moving average of the weights, which is evaluated on rank 0."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(0)
    x = torch.randn(140, 8, generator=g)
    y = (x[:, :4] * x[:, 4:]).sum(1, keepdim=True)
    data, held_out = TensorDataset(x[:120], y[:120]), (x[120:], y[120:])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
    model, ema = DDP(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, target in loader:
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            ema.update_parameters(net)
        if rank == 0:
            ema.eval()
            with torch.no_grad():
                print(f"epoch {epoch} ema {F.mse_loss(ema(held_out[0]), held_out[1]).item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
