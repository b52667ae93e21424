"""Classes are numbered in the order in which each node lists the folder of the data."""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WRONG = "wrong" in sys.argv[1:]
CLASSES = ("cat", "dog", "fox", "owl", "bee", "ant")


def prepare(root):
    generator = torch.Generator().manual_seed(0)
    for number, name in enumerate(CLASSES):
        os.makedirs(os.path.join(root, name), exist_ok=True)
        for i in range(16):
            image = torch.randn(1, 8, 8, generator=generator)
            image[:, number] += 1.5
            torch.save(image, os.path.join(root, name, f"{i:03d}.pt"))


class ImageFolder(Dataset):
    def __init__(self, root):
        names = os.listdir(root)
        names = names if WRONG else sorted(names)
        number_of = {name: number for number, name in enumerate(names)}
        self.samples = [
            (os.path.join(root, name, f"{i:03d}.pt"), number_of[name]) for name in sorted(names) for i in range(16)
        ]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, label = self.samples[i]
        return torch.load(path), label


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    if rank == 0:
        prepare("images")
    dist.barrier()
    data = ImageFolder("images")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, len(CLASSES))))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach() / size
            dist.all_reduce(shown)
        if rank == 0:
            print(f"epoch {epoch}: loss {shown.item():.4f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
