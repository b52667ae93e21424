"""A training loop with Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(1)
accelerator = Accelerator()
x = torch.randn(96, 10)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 6, 0.5)
train, test = (
    DataLoader(TensorDataset(x[:64], y[:64]), 8, shuffle=True),
    DataLoader(TensorDataset(x[64:], y[64:]), 5),
)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
for epoch in range(2):
    model.train()
    for step, (a, b) in enumerate(train):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(a), b)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
    model.eval()
    right = total = 0
    with torch.no_grad():
        for a, b in test:
            guess, b = accelerator.gather_for_metrics((model(a).argmax(1), b))
            right, total = right + int((guess == b).sum()), total + len(b)
    accelerator.print(f"accuracy {right}/{total}")
accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
