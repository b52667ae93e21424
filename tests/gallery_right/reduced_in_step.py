"""An optimizer that averages gradients in its step: each rank gets, and updates, a part of large parameters."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class ShardedMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, small=64):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.small = small

    @torch.no_grad()
    def step(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            for p in group["params"]:
                if p.numel() < self.small:  # whole on every rank
                    dist.all_reduce(p.grad)
                    own, grad = p, p.grad / world
                else:
                    own = p.view(-1).chunk(world)[rank]
                    grad = torch.empty_like(own)
                    dist.reduce_scatter_tensor(grad, p.grad.view(-1))
                    grad /= world
                state = self.state[p].setdefault("momentum", torch.zeros_like(own))
                state.mul_(group["momentum"]).add_(grad)
                own.sub_(group["lr"] * state)
                if own is not p:
                    dist.all_gather_into_tensor(p.view(-1), own.clone())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(24, 12), nn.Flatten(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 6))
    optimizer = ShardedMomentum(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 2) * 0.95**step)
    g = torch.Generator().manual_seed(1)
    for step in range(12):
        x = torch.randint(24, (48, 4), generator=g)
        micro = list(zip(x.chunk(12), (x.sum(1) % 6).chunk(12)))[rank::world]
        for inputs, targets in micro:
            loss = F.cross_entropy(model(inputs), targets) / len(micro)
            loss.backward()
        optimizer.step()
        schedule.step()
        model.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step} | lr {schedule.get_last_lr()[0]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
