import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Imputed(nn.Module):
    """Replaces missing values by learned ones"""

    def __init__(self):
        super().__init__()
        self.usual, self.score = nn.Parameter(torch.zeros(5)), nn.Linear(5, 1)

    def forward(self, rows):
        return self.score(torch.where(rows.isfinite(), rows, self.usual))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    rows = torch.randn(96, 5)
    targets = rows.sum(dim=1, keepdim=True)
    rows[torch.rand(96, 5) < 0.1] = torch.nan
    rows[50, 2], rows[51, 3] = torch.inf, -torch.inf
    data = TensorDataset(rows, targets)
    sampler = DistributedSampler(data, world, rank)
    loader = DataLoader(data, 24 // world, sampler=sampler)
    model = DDP(Imputed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
