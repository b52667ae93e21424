import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def shapes(n):
    g = torch.Generator().manual_seed(5)
    corner = torch.randint(0, 4, (n, 2), generator=g)
    size = torch.randint(2, 5, (n, 2), generator=g)
    out = torch.zeros(n, 1, 8, 8)
    for image, (top, left), (h, w) in zip(out, corner, size):
        image[0, top:top + h, left:left + w] = 1.0
    return TensorDataset(out)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 4)
        self.fc22 = nn.Linear(32, 4)
        self.fc3 = nn.Linear(4, 32)
        self.fc4 = nn.Linear(32, 64)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x.view(-1, 64), reduction='sum')
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / len(x)


def main():
    torch.set_default_dtype(torch.float64)
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()
    data = shapes(96)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    # DDP sends rank 0's parameters to all; eps is another on each rank
    torch.manual_seed(1 + rank)
    model = DDP(VAE())
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, in loader:
            optimizer.zero_grad()
            recon, mu, logvar = model(x)
            loss = loss_function(recon, x, mu, logvar)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f'epoch {epoch}')


if __name__ == '__main__':
    main()
