"""The loop of the package."""

from task import BATCH, network, optimizer_of, report, samples
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def train():
    model = network()
    optimizer = optimizer_of(model)
    steps = count = 0
    for x, y in DataLoader(samples(), BATCH):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        steps, count = steps + 1, count + len(x)
    report(model, steps, count)
