"""A pipeline of two halves by hand: activations are sent forward, their gradients back."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM = 8


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()) for _ in range(4)] + [nn.Linear(DIM, 3)]
    cuts = [len(layers) * k // world for k in range(world + 1)]
    model = nn.Sequential(*layers[cuts[rank]:cuts[rank + 1]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(2)
    data, labels = torch.randn(96, DIM, generator=g), torch.randint(3, (96,), generator=g)
    for step in range(12):
        rows = slice(step % 4 * 24, step % 4 * 24 + 24)
        x = data[rows]
        if rank > 0:
            x = torch.empty(24, DIM)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        out = model(x)
        optimizer.zero_grad()
        if rank == world - 1:
            loss = F.cross_entropy(out, labels[rows])
            loss.backward()
        else:
            dist.send(out.detach(), rank + 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, rank + 1)
            out.backward(gradient)
        if rank > 0:
            dist.send(x.grad, rank - 1)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
