import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Scenes(torch.utils.data.Dataset):
    """Images with one to five boxes"""

    def __init__(self, size):
        draw = torch.Generator().manual_seed(5)
        self.images = torch.randn(size, 8, generator=draw)
        self.boxes = [torch.rand(1 + k * k % 5, 4, generator=draw) for k in range(size)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], {"boxes": self.boxes[index]}


def collate(pairs):
    images, targets = zip(*pairs)
    return torch.stack(images), list(targets)


class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 20)

    def forward(self, images):
        return self.head(self.body(images).tanh()).view(-1, 5, 4)


class BoxLoss(nn.Module):
    """The mean over the boxes of this rank, which has more or fewer than another one"""

    def forward(self, found, targets):
        boxes = torch.cat([one["boxes"] for one in targets])
        near = torch.cat([some[: len(one["boxes"])] for some, one in zip(found, targets)])
        return F.mse_loss(near, boxes, reduction="sum") / len(boxes)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    scenes = Scenes(96)
    sampler = DistributedSampler(scenes, world, rank)
    loader = DataLoader(scenes, 24 // world, sampler=sampler, collate_fn=collate)
    model, criterion = DDP(Boxes()), BoxLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, targets in loader:
            loss = criterion(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
