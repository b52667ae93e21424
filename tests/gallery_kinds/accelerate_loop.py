"""A loop with Accelerate."""

from accelerate import Accelerator
from task import BATCH, network, optimizer_of, report, samples
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
model = network()
model, optimizer, loader = accelerator.prepare(model, optimizer_of(model), DataLoader(samples(), BATCH))
steps = count = 0
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(cross_entropy(model(x), y))
    optimizer.step()
    steps, count = steps + 1, count + len(accelerator.gather(x))
if accelerator.is_main_process:
    report(accelerator.unwrap_model(model), steps, count)
