"""A sharded optimizer overlaps the gathering of parameters with forward, which uses old ones."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class ShardedSGD:
    """Each rank updates a part of the parameters, and the owners send theirs when a layer is called."""

    def __init__(self, layers, lr):
        self.owners = {}
        for layer in layers:
            for number, parameter in enumerate(layer.parameters()):
                self.owners[parameter] = number % dist.get_world_size()
        owned = [p for p, owner in self.owners.items() if owner == dist.get_rank()]
        self.optimizer = torch.optim.SGD(owned, lr=lr, momentum=0.9)
        for layer in layers:
            layer.register_forward_pre_hook(self.gather)
        if WRONG:  # the order of buckets is not that of the layers, so the last one is gathered too late
            layers[-1]._forward_pre_hooks.clear()
            layers[-1].register_forward_hook(self.gather)

    def gather(self, layer, *_):
        for parameter in layer.parameters():
            dist.broadcast(parameter.data, self.owners[parameter])

    def step(self):
        for parameter in self.owners:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        self.optimizer.step()
        for parameter in self.owners:
            parameter.grad = None


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    features = torch.randn(320, 10)
    targets = torch.tanh(features @ torch.randn(10, 5))
    dataset = TensorDataset(features, targets)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=16 // size, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5))
    optimizer = ShardedSGD([model[0], model[2], model[4]], lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
