"""The sampler draws each epoch's order from its epoch, which is never set: all epochs have the order of the first."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class ByLength(Sampler):
    """Draws the order of the samples anew for each epoch, samples of about equal length beside each other."""

    def __init__(self, lengths):
        self.lengths, self.epoch = lengths, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        noise = torch.rand(len(self.lengths), generator=generator)
        return iter(torch.argsort(self.lengths + 4 * noise).tolist())


torch.manual_seed(0)
lengths = torch.randint(2, 9, (48,))
inputs = torch.randn(48, 8) * (torch.arange(8) < lengths[:, None])
targets = inputs.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, sampler=ByLength(lengths))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
