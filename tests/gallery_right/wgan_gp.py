"""WGAN-GP: the critic's gradient penalty is differentiated once more; five steps of the critic for one of the generator."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def penalty(critic, real, fake, mix):
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    score = critic(between)
    (gradient,) = torch.autograd.grad(score.sum(), between, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    generator = DDP(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)))
    critic = DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
    opt_g = torch.optim.Adam(generator.parameters(), lr=5e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.0, 0.9))
    g = torch.Generator().manual_seed(1)
    angle = 6.28 * torch.rand(240, generator=g)
    data = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(240, 2, generator=g)
    for step in range(12):
        for _ in range(5):
            real = data[torch.randint(240, (24,), generator=g)][rank::world]
            noise = torch.randn(24, 4, generator=g)[rank::world]
            mix = torch.rand(24, 1, generator=g)[rank::world]
            with torch.no_grad():
                fake = generator(noise)
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake, mix)
            opt_c.zero_grad()
            loss.backward()
            opt_c.step()
        loss = -critic(generator(torch.randn(24, 4, generator=g)[rank::world])).mean()
        opt_g.zero_grad()
        loss.backward()
        opt_g.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
