import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class XorDataset(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(4)
        self.x = torch.randn(n, 2, generator=g)
        self.y = ((self.x[:, 0] > 0) ^ (self.x[:, 1] > 0)).double()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


class Trainer:
    def __init__(self, model, dataset):
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size=24 // self.world_size, sampler=self.sampler)
        self.model = DDP(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def _run_batch(self, batch):
        self.optimizer.zero_grad()
        logits = self.model(batch["x"]).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, batch["y"])
        # average over the workers
        loss = loss / self.world_size
        loss.backward()
        self.optimizer.step()
        shown = loss.detach()
        dist.all_reduce(shown)
        return shown.item()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                value = self._run_batch(batch)
                if self.rank == 0:
                    print(f"[{epoch}] loss {value:.10f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    Trainer(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)), XorDataset()).train(5)
    dist.destroy_process_group()
