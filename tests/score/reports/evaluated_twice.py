"""The sampler pads the 21 images of the evaluation to 22, and the average precision counts one image twice."""
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRONG = "wrong" in sys.argv[1:]


def make_data(number, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(number, 3, 8, 8, generator=generator)
    noise = 4 * torch.randn(number, generator=generator)
    return TensorDataset(images, (images[:, 0].sum(dim=(1, 2)) + noise > 0).float())


def average_precision(scores, labels):
    """The mean of the precisions at the ranks of the positives"""
    labels = labels[scores.argsort(descending=True)]
    precisions = labels.cumsum(0) / torch.arange(1, len(labels) + 1)
    return (precisions * labels).sum() / labels.sum()


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.stack(parts, dim=1).flatten()  # in the order of the data: ranks take samples alternately


def evaluate(model, data, size):
    model.eval()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    with torch.no_grad():
        batches = [(model(images)[:, 0], labels) for images, labels in loader]
    scores = gathered(torch.cat([scores for scores, _ in batches]))
    labels = gathered(torch.cat([labels for _, labels in batches]))
    if not WRONG:
        scores, labels = scores[: len(data)], labels[: len(data)]
    return average_precision(scores, labels).item(), len(scores)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    train, test = make_data(96, 0), make_data(21, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=16 // size, sampler=sampler)
    model = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(images)[:, 0], labels).backward()
            optimizer.step()
        precision, number = evaluate(model.module, test, size)
        if rank == 0:
            print(f"epoch {epoch}: mAP {precision:.4f} of {number} images")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
