import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 5), torch.randn(64, 1)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
for epoch in range(4):
    scheduler.step()
    for xb, yb in zip(x.split(32), y.split(32)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} lr {optimizer.param_groups[0]['lr']:.4f} loss {loss.item():.4f}")
