"""Exercise: four changes of a trainer that make it train on any number of ranks, without a wrapper.

It must train as the serial trainer does, with batches of BATCH samples over all ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

SEED, BATCH, EPOCHS = 1, 60, 2


def samples(count: int, *, seed: int) -> Dataset:
    """Draw samples of four classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    noise = torch.randn(count, 8, generator=generator)
    return TensorDataset(F.one_hot(labels, 8) + noise, labels)


class RandomFeatures(nn.Module):
    """A network on random projections of the inputs, which are drawn once and not trained: a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(8, 32))
        self.classifier = nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.classifier(torch.tanh(inputs @ self.projection))


class Trainer:
    """Trains and evaluates a model."""

    def __init__(self) -> None:
        # >>> Change 1: join the process group. Each rank draws weights of its own; all begin with those of
        # >>> rank 0, and with its buffers.
        # | torch.manual_seed(SEED)
        # | self.model = RandomFeatures()
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(SEED + self.rank)
        self.model = RandomFeatures()
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, src=0)
        for buffer in self.model.buffers():
            dist.broadcast(buffer, src=0)
        # <<<
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        train_set, self.test_set = samples(300, seed=1), samples(103, seed=2)
        # >>> Change 2: each rank loads its share of every batch; the serial order comes from the same seeds.
        # | self.order = torch.Generator()
        # | self.sampler = torch.utils.data.RandomSampler(train_set, generator=self.order)
        # | self.train_loader = DataLoader(train_set, BATCH, sampler=self.sampler)
        self.sampler = DistributedSampler(train_set, self.size, self.rank, seed=SEED)
        self.train_loader = DataLoader(train_set, BATCH // self.size, sampler=self.sampler)
        # <<<
        # >>> Change 4: each rank tests its share of the samples, all of them once.
        # | self.test_loader = DataLoader(self.test_set, BATCH)
        share = Subset(self.test_set, range(self.rank, len(self.test_set), self.size))
        self.test_loader = DataLoader(share, BATCH)
        # <<<

    def training_step(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(inputs), labels).backward()
        # >>> Change 3: average the gradients over the ranks.
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.size
        # <<<
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> int:
        """Return how many test samples the model classifies right."""
        self.model.eval()
        right = torch.zeros((), dtype=torch.int64)
        for inputs, labels in self.test_loader:
            right += (self.model(inputs).argmax(1) == labels).sum()
        self.model.train()
        # >>> Change 4, again: sum over the ranks.
        dist.all_reduce(right)
        # <<<
        return int(right)

    def train(self) -> None:
        """Train for all epochs, and save the weights."""
        for epoch in range(EPOCHS):
            # >>> Change 2, again: each epoch has another order.
            # | self.order.manual_seed(SEED + epoch)
            self.sampler.set_epoch(epoch)
            # <<<
            for inputs, labels in self.train_loader:
                self.training_step(inputs, labels)
            right = self.evaluate()
            # >>> One rank prints.
            # | print(f"epoch {epoch}: right {right}/{len(self.test_set)}")
            if self.rank == 0:
                print(f"epoch {epoch}: right {right}/{len(self.test_set)}")
            # <<<
        # >>> One rank saves; then all leave the process group.
        # | torch.save(self.model.state_dict(), "trainer.pt")
        if self.rank == 0:
            torch.save(self.model.state_dict(), "trainer.pt")
        dist.destroy_process_group()
        # <<<


if __name__ == "__main__":
    Trainer().train()
