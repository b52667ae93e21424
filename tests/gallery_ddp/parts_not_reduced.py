"""Each rank updates some of the parameters and sends them to the others; gradients are not averaged."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class OwnedSGD(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        world, parameters = dist.get_world_size(), self.param_groups[0]["params"]
        for k, p in enumerate(parameters):
            if k % world != dist.get_rank():
                p.grad = None
        super().step()
        for k, p in enumerate(parameters):
            dist.broadcast(p, k % world)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = OwnedSGD(model.parameters(), lr=0.2, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(96, 8, generator=g)
    y = x[:, :3].argmax(1)
    for epoch in range(3):
        for inputs, targets in zip(x.split(24), y.split(24)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[rank::world]), targets[rank::world])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
