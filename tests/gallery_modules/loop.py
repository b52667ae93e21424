"""The training of the scripts of this folder, which differ in their model."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(n):
    x = torch.randn(n, 8)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def train(net, samples=samples, loss_of=F.cross_entropy, **options):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    data = samples(96)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, batch_size=24 // world, sampler=sampler)
    model = DDP(net(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
