import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loaders(world):
    g = torch.Generator().manual_seed(15)
    x = torch.randn(128, 7, generator=g)
    y = x[:, :1] * x[:, 1:2] + 0.1 * torch.randn(128, 1, generator=g)
    train, test = TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])
    return (DataLoader(train, batch_size=24 // world, sampler=DistributedSampler(train, shuffle=True)),
            DataLoader(test, batch_size=32, shuffle=False))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(99)
    train_loader, test_loader = loaders(world)
    model = DDP(nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        for x, y in train_loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            dist.all_reduce(loss)
            if rank == 0:
                print("train loss %.10f" % (loss / world))
        if rank == 0:
            with torch.no_grad():
                for x, y in test_loader:
                    print("epoch %d test loss %.10f" % (epoch, nn.functional.mse_loss(model.module(x), y)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
