"""Models called in the usual way and in others: by another method, by `forward`, by functional_call."""
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

torch.set_default_dtype(torch.float64)
torch.manual_seed(9)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 9), nn.Tanh())
        self.head = nn.Linear(9, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def features(self, x):
        return self.body(x)

    def loss(self, x, y):
        return F.cross_entropy(self(x), y)


x = torch.randn(45, 5)
y = x[:, :3].argmax(1)


def usual(net, a, b):
    return F.cross_entropy(net(a), b)


def method(net, a, b):
    return net.loss(a, b)


def by_forward(net, a, b):
    return F.cross_entropy(net.forward(a), b)


def in_pieces(net, a, b):
    return F.cross_entropy(net.head.forward(net.features(a)), b)


def functional(net, a, b):
    weights = {name: p * 1.0 for name, p in net.named_parameters()}
    return F.cross_entropy(functional_call(net, weights, (a,)), b)


def its_own_weights(net, a, b):
    return F.cross_entropy(functional_call(net, dict(net.named_parameters()), (a,)), b)


def partial(net, a, b):
    return F.cross_entropy(functools.partial(net)(a), b)


def unbound(net, a, b):
    return F.cross_entropy(type(net).__call__(net, a), b)


for way in (usual, method, by_forward, in_pieces, functional, its_own_weights, partial, unbound):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(2):
        for rows in torch.randperm(45).split(10):
            loss = way(net, x[rows], y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
    print(f"{way.__name__}: loss {loss.item():.10f} weights {net.head.weight.norm().item():.10f}")

weights = {name: p.detach() for name, p in net.named_parameters()}


def of_one(weights, a, b):
    return F.cross_entropy(functional_call(net, weights, (a.unsqueeze(0),)), b.unsqueeze(0))


each = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, x, y)
norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
print(f"norms of the samples' gradients: mean {norms.mean().item():.10f} largest {norms.max().item():.10f}")
