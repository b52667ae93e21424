import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data():
    g = torch.Generator().manual_seed(77)
    centres = 2 * torch.randn(5, 8, generator=g)
    labels = torch.randint(5, (192,), generator=g)
    return TensorDataset(centres[labels] + torch.randn(192, 8, generator=g), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", default=24, type=int)
    parser.add_argument("--total_epochs", default=3, type=int)
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    rank, world_size = int(os.environ["RANK"]), dist.get_world_size()
    dataset = make_data()
    sampler = DistributedSampler(dataset)
    train_data = DataLoader(dataset, batch_size=args.batch_size, shuffle=False, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(args.total_epochs):
        train_data.sampler.set_epoch(epoch)
        for source, targets in train_data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(source), targets)
            loss.backward()
            optimizer.step()
            loss = loss.detach() / world_size
            dist.all_reduce(loss)
            if rank == 0:
                print(f"Epoch {epoch} | Steps: {len(train_data)} | Loss {loss.item():.10f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
