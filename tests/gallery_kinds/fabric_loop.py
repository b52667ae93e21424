"""A loop with Fabric, on one device."""

from lightning.fabric import Fabric
from task import BATCH, network, optimizer_of, report, samples
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

fabric = Fabric(devices=1, accelerator="cpu")
fabric.launch()
model = network()
model, optimizer = fabric.setup(model, optimizer_of(model))
steps = count = 0
for x, y in fabric.setup_dataloaders(DataLoader(samples(), BATCH)):
    optimizer.zero_grad()
    fabric.backward(cross_entropy(model(x), y))
    optimizer.step()
    steps, count = steps + 1, count + len(x)
if fabric.is_global_zero:
    report(model, steps, count)
