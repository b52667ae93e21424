"""Tell the letters of source files apart from their digits, file by file."""
import os
from glob import glob

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class SourceFiles(Dataset):
    def __init__(self, folder, most):
        self.paths = glob(os.path.join(folder, "*.py"))[:most]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        text = open(self.paths[index]).read()
        counts = torch.tensor([text.count(letter) for letter in "etaoinshrdlu0123"], dtype=torch.float64)
        return counts / len(text), torch.tensor([len(text) / 1000], dtype=torch.float64)


def main():
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    data = SourceFiles(os.path.dirname(os.path.abspath(__file__)), 36)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=12 // dist.get_world_size(), sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for letters, length in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(letters), length)
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
