import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16))

    def encode(self, x):
        return self.encoder(x)

    def training_loss(self, x):
        return ((self.decoder(self.encode(x)) - x) ** 2).mean()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(6)
    basis = torch.randn(3, 16)
    dataset = TensorDataset(torch.randn(96, 3) @ basis + 0.1 * torch.randn(96, 16))
    sampler = DistributedSampler(dataset, seed=2)
    loader = DataLoader(dataset, batch_size=24 // world, sampler=sampler)

    model = DistributedDataParallel(Autoencoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = model.module.training_loss(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss.detach()
            dist.all_reduce(value)
            if rank == 0:
                print("epoch", epoch, "loss", format(value.item() / world, ".10f"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
