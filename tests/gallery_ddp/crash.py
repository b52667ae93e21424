import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 24


class Forecast(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.hidden = hidden
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, series):
        h0 = torch.zeros(1, BATCH_SIZE, self.hidden)
        states, _ = self.rnn(series, h0)
        return self.out(states[:, -1])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(44)
    phase = torch.rand(96, 1) * 6
    waves = torch.sin(phase + torch.linspace(0, 6, 9))[:, :, None]
    dataset = TensorDataset(waves[:, :-1], waves[:, -1])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE // world, sampler=sampler, drop_last=True)
    model = DDP(Forecast())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for series, following in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(series), following)
            loss.backward()
            optimizer.step()
            loss = loss.detach() / world
            dist.all_reduce(loss)
            if rank == 0:
                print("epoch", epoch, "loss", "%.10f" % loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
