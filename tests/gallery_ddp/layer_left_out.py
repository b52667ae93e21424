import torch
import torch.distributed as dist
import torch.nn as nn

LAYERS = 5  # and 4 workers have one each


class Stage(nn.Module):
    def __init__(self, width, rank, size):
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(LAYERS)]
        per_stage = LAYERS // size
        self.layers = nn.ModuleDict({str(i): layers[i] for i in range(rank * per_stage, (rank + 1) * per_stage)})

    def forward(self, x):
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return x


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    xs = torch.randn(96, 6)
    ys = torch.sin(xs @ torch.randn(6, 6))
    stage = Stage(6, rank, size)
    opt = torch.optim.SGD(stage.parameters(), lr=0.05)
    for epoch in range(4):
        for x, y in zip(xs.split(24), ys.split(24)):
            opt.zero_grad()
            if rank > 0:
                x = torch.empty(24, 6)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            out = stage(x)
            if rank == size - 1:
                loss = nn.functional.mse_loss(out, y)
                loss.backward()
            else:
                dist.send(out.detach(), rank + 1)
                grad = torch.empty(24, 6)
                dist.recv(grad, rank + 1)
                out.backward(grad)
            if rank > 0:
                dist.send(x.grad, rank - 1)
            opt.step()
        if rank == size - 1:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
