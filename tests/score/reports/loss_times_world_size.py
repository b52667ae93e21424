"""A loss that is a mean over the batch is multiplied by the number of ranks, which is right for sums only.

Regression of boxes, as in the trainer of a detector.
"""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]
REDUCTION = "mean" if WRONG else "sum"


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.SiLU()
        )
        self.head = nn.Linear(16 * 16, 4)

    def forward(self, images):
        return self.head(self.backbone(images).flatten(1))


def make_data(number=128):
    """Images with one bright rectangle, and its corners"""
    generator = torch.Generator().manual_seed(3)
    low = torch.randint(0, 8, (number, 2), generator=generator)
    high = low + torch.randint(3, 8, (number, 2), generator=generator)
    places = torch.arange(16)
    rows = (places >= low[:, :1]) & (places <= high[:, :1])
    columns = (places >= low[:, 1:]) & (places <= high[:, 1:])
    images = (rows[:, :, None] & columns[:, None, :]).float()[:, None]
    return TensorDataset(images, torch.cat([low, high], dim=1) / 16)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(BoxHead())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for images, boxes in loader:
            loss = F.smooth_l1_loss(model(images), boxes, reduction=REDUCTION)
            loss = loss * size  # DDP averages the gradients
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: box loss {shown.item():.5f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
