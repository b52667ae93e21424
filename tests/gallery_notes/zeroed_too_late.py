import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 5), torch.randn(64, 1)
net = nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(8):
    for xb, yb in zip(x.split(32), y.split(32)):
        loss = (net(xb) - yb).pow(2).mean()
        loss.backward()
        opt.zero_grad(set_to_none=False)
        opt.step()
    print(epoch, loss.item())
