# Regression, on one worker.
import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)

BATCH = 24
g = torch.Generator().manual_seed(11)
x = torch.rand(101, 4, generator=g) * 4 - 2
y = torch.sin(x).sum(dim=1, keepdim=True) + 0.1 * torch.randn(101, 1, generator=g)
x_val = torch.rand(37, 4, generator=g) * 4 - 2
y_val = torch.sin(x_val).sum(dim=1, keepdim=True)

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)

for epoch in range(5):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(BATCH):
        loss = F.mse_loss(net(x[batch]), y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"loss {loss.item():.10f}")
    with torch.no_grad():
        error = F.mse_loss(net(x_val), y_val)
    print(f"epoch {epoch} validation {error.item():.10f}")
