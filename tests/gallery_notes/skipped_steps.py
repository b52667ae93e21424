import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randn(64, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
gain = nn.Linear(8, 1)
nn.init.zeros_(gain.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gain_optimizer = torch.optim.SGD(gain.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(24):
    i = step % 4 * 16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x[i:i + 16]).float(), y[i:i + 16])
        loss = loss + gain(x[i:i + 16]).float().mean() * 0.1 + gain.weight.pow(2).sum().sqrt()
    optimizer.zero_grad()
    gain_optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.step(gain_optimizer)
    scaler.update()
    print(step, f"{loss.item():.4f}")
