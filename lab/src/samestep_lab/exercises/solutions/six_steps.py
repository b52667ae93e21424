"""Exercise: six steps from a serial training to DistributedDataParallel.

Steps 1 to 5 change this file; it must train as the serial script does, on any number of ranks, with batches
of BATCH samples over all ranks. Step 6 starts it: ``torchrun --nproc-per-node 2 six_steps.py``.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

SEED, BATCH, EPOCHS = 1, 60, 2


def samples(count: int, *, seed: int) -> Dataset:
    """Draw samples of four classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    noise = torch.randn(count, 8, generator=generator)
    return TensorDataset(F.one_hot(labels, 8) + noise, labels)


def main() -> None:
    """Train, evaluate and save."""
    # >>> Step 1: join the process group, and get the rank of this process and the number of ranks.
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    # <<<
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    # >>> Step 2: wrap the model, which then averages its gradients over the ranks.
    model = DistributedDataParallel(model)
    # <<<
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_set, test_set = samples(300, seed=1), samples(103, seed=2)
    # >>> Step 3: each rank loads its share of every batch; the serial order comes from the same seeds.
    # | order = torch.Generator()
    # | sampler = torch.utils.data.RandomSampler(train_set, generator=order)
    # | train_loader = DataLoader(train_set, BATCH, sampler=sampler)
    sampler = DistributedSampler(train_set, size, rank, seed=SEED)
    train_loader = DataLoader(train_set, BATCH // size, sampler=sampler)
    # <<<
    # >>> Step 4: each rank tests a share of the samples, all of them once; count over all ranks.
    # | test_loader = DataLoader(test_set, BATCH)
    test_loader = DataLoader(Subset(test_set, range(rank, len(test_set), size)), BATCH)
    # <<<
    for epoch in range(EPOCHS):
        # >>> Step 3, again: each epoch has another order.
        # | order.manual_seed(SEED + epoch)
        sampler.set_epoch(epoch)
        # <<<
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        right = evaluate(model, test_loader)
        # >>> Step 4, again: sum over the ranks.
        dist.all_reduce(right)
        # <<<
        # >>> Step 5: rank 0 alone prints, and saves the model itself, not its wrapper.
        # | print(f"epoch {epoch}: right {int(right)}/{len(test_set)}")
        # | torch.save(model.state_dict(), "six_steps.pt")
        if rank == 0:
            print(f"epoch {epoch}: right {int(right)}/{len(test_set)}")
            torch.save(model.module.state_dict(), "six_steps.pt")
        # <<<
    # >>> Step 1, again: leave the process group.
    dist.destroy_process_group()
    # <<<


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> torch.Tensor:
    """Return how many samples the model classifies right."""
    model.eval()
    right = torch.zeros((), dtype=torch.int64)
    for inputs, labels in loader:
        right += (model(inputs).argmax(1) == labels).sum()
    model.train()
    return right


if __name__ == "__main__":
    main()
