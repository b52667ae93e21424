"""`serial.py` on any number of workers: the six changes, each marked, and the same losses.

Run it with ``samestep run -n 2 examples/joined.py``. Started without a launcher, by
``python examples/joined.py``, it does what the serial script does.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samestep

EPOCHS, BATCH_SIZE = 3, 64


def images(count: int, *, seed: int) -> TensorDataset:
    """Draw images of ten classes, 8 x 8 pixels: a pattern of the class under noise."""
    patterns = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 1, 8, 8, generator=generator)
    return TensorDataset(patterns[labels] + 0.5 * noise, labels)


def main(world: samestep.World) -> None:
    torch.set_default_dtype(torch.float64)  # to compare the losses to many digits
    torch.manual_seed(0)
    # 2. The device: the one that this worker was bound to.
    device = world.device
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).to(device)
    # 3. The replicas: begun equal; every backward ends with averaged gradients. Batch norm takes its
    #    statistics over the global batch, as the serial script does.
    samestep.replicate(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    # 4. The data: BATCH_SIZE stays the size of the global batch, of which each worker gets its share.
    #    (With shuffle=True the order is samestep's own: the same on any number of workers, but not the one
    #    that torch's sampler draws.)
    train_set, test_set = images(1001, seed=2), images(500, seed=3)
    train_loader = samestep.shard(DataLoader(train_set, batch_size=BATCH_SIZE))
    test_loader = samestep.shard(DataLoader(test_set, batch_size=BATCH_SIZE))

    for epoch in range(EPOCHS):
        model.train()
        loss_sum = 0.0
        for batch, labels in train_loader:
            scores = model(batch.to(device))
            loss = F.cross_entropy(scores, labels.to(device))
            optimizer.zero_grad()
            # (4, continued) Shares of the short last batch may be uneven: the weight makes up for it.
            (loss * train_loader.loss_weight).backward()
            optimizer.step()
            loss_sum += loss.item() * len(labels)

        model.eval()
        correct = 0
        with torch.no_grad():
            for batch, labels in test_loader:
                scores = model(batch.to(device))
                correct += (scores.argmax(1) == labels.to(device)).sum().item()
        # 5. The figures: each worker has seen its share, so sums are added up; printed once.
        loss_sum, correct = world.sum(loss_sum), int(world.sum(correct))
        mean_loss = loss_sum / len(train_set)
        world.print(f"epoch {epoch + 1}: loss {mean_loss:.9f}, right {correct}/{len(test_set)}")

    # 6. The checkpoint: written once, with the keys of the serial script.
    world.on_main(lambda: torch.save(model.state_dict(), "model.pt"))


if __name__ == "__main__":
    # 1. Join the other workers that the launcher started; alone, this is a world of one.
    with samestep.join() as world:
        main(world)
