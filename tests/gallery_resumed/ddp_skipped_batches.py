import os
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SNAPSHOT = "snapshot.pt"
SAVE_EVERY = 7


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    return TensorDataset(x, x.square().sum(1, keepdim=True).sqrt())


class Trainer:
    def __init__(self, epochs):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.epochs = epochs
        self.epoch = self.batch = self.global_step = 0
        torch.manual_seed(42)
        self.model = DDP(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 3e-2, total_steps=40)
        data = make_data(240, 0)
        self.sampler = DistributedSampler(data, seed=7)
        self.loader = DataLoader(data, 24 // self.world_size, sampler=self.sampler)
        torch.manual_seed(42 + self.rank)
        self.rng = None
        if os.path.exists(SNAPSHOT):
            self.load()

    def save(self):
        states = [None] * self.world_size
        dist.all_gather_object(states, torch.get_rng_state())
        if self.rank == 0:
            torch.save({
                "model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(), "epoch": self.epoch, "batch": self.batch,
                "global_step": self.global_step, "rng": states}, SNAPSHOT + ".part")
            os.replace(SNAPSHOT + ".part", SNAPSHOT)

    def load(self):
        snapshot = torch.load(SNAPSHOT)
        self.model.module.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.scheduler.load_state_dict(snapshot["scheduler"])
        self.epoch, self.batch = snapshot["epoch"], snapshot["batch"]
        self.global_step = snapshot["global_step"]
        self.rng = snapshot["rng"][self.rank]
        if self.rank == 0:
            print(f"Snapshot found: resuming at step {self.global_step}")

    def batches(self):
        self.sampler.set_epoch(self.epoch)
        rest = islice(self.loader, self.batch, None)
        first = next(rest, None)
        # making and skipping draws random numbers, too: those of the snapshot begin here
        if self.rng is not None:
            torch.set_rng_state(self.rng)
            self.rng = None
        if first is not None:
            yield first
            yield from rest

    def run_epoch(self):
        total = torch.zeros(2)
        for x, y in self.batches():
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.batch += 1
            self.global_step += 1
            total += torch.tensor([loss.item(), 1.0])
            if self.global_step % SAVE_EVERY == 0:
                self.save()
        return total

    def evaluate(self):
        data = make_data(60, 1)
        x, y = (t[self.rank::self.world_size] for t in data.tensors)
        self.model.eval()
        with torch.no_grad():
            error = (self.model.module(x) - y).square().sum()
        self.model.train()
        dist.all_reduce(error)
        return error.item() / len(data)

    def train(self):
        while self.epoch < self.epochs:
            self.run_epoch()
            self.epoch, self.batch = self.epoch + 1, 0
            error = self.evaluate()
            if self.rank == 0:
                print(f"epoch {self.epoch} step {self.global_step} error {error:.6f}")
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), "final.pt")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(epochs=4).train()
    dist.destroy_process_group()
