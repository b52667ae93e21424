import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)
y = x @ torch.randn(8, 1) + 10
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# warm up over 1000 steps
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 1000))

for step in range(20):
    i = step % 4 * 16
    loss = nn.functional.mse_loss(model(x[i:i + 16]), y[i:i + 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warmup.step()
    if step % 5 == 0:
        print(f"step {step}: {loss.item():.4f}")
