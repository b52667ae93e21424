import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(4):
    for xb, yb in zip(x.split(32), y.split(32)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    print(epoch, loss.item())
