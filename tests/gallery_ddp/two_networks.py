"""A generator of points on a ring and its critic, both distributed."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    angle = torch.rand(96) * 6.283
    ring = torch.stack([angle.cos(), angle.sin()], dim=1)
    netG = DDP(nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 2)))
    netD = DDP(nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)))
    optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

    for i in range(12):
        # all ranks draw the same numbers, each takes its rows
        real = ring[torch.randperm(96)[:24]].chunk(world)[rank]
        noise = torch.randn(24, 3).chunk(world)[rank]
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        fake = netG(noise)
        optD.zero_grad()
        points = netD(torch.cat([real, fake.detach()]))
        lossD = F.binary_cross_entropy_with_logits(points, torch.cat([ones, zeros]))
        lossD.backward()
        optD.step()

        optG.zero_grad()
        lossG = F.binary_cross_entropy_with_logits(netD(fake), ones)
        lossG.backward()
        optG.step()

        both = torch.stack([lossD.detach(), lossG.detach()])
        dist.all_reduce(both)
        both /= world
        if rank == 0:
            print("[%d/12] Loss_D: %.10f Loss_G: %.10f" % (i, both[0], both[1]))
    dist.destroy_process_group()


main()
