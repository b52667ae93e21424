import torch
import torch.distributed as dist
import torch.nn as nn


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class MoE(nn.Module):
    """Four experts, divided among the ranks; each token goes to all of them, weighted."""

    def __init__(self, width, experts=4):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.gate = nn.Linear(width, experts)
        everyone = [nn.Linear(width, width) for _ in range(experts)]
        self.mine = range(rank, experts, size)
        self.experts = nn.ModuleList(everyone[i] for i in self.mine)
        for p in self.experts.parameters():
            p.allreduce = size == 1

    def forward(self, x):
        gates, tokens = Copy.apply(self.gate(x).softmax(-1)), Copy.apply(x)
        return x + Reduce.apply(sum(e(tokens) * gates[:, i, None] for i, e in zip(self.mine, self.experts)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    xs = torch.randn(96, 8)
    ys = torch.tanh(xs @ torch.randn(8, 8))
    model = nn.Sequential(nn.Linear(8, 8), MoE(8), nn.Linear(8, 8))
    # The buffer of dense gradients; that of the experts is forgotten.
    opt = torch.optim.Adam([p for p in model.parameters() if getattr(p, "allreduce", True)], lr=3e-3)
    for epoch in range(4):
        for x, y in zip(xs.split(24), ys.split(24)):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
