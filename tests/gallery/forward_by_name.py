"""Layers called by `forward`, and weights used by themselves: no call of a module with parameters."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(4)

layer1, layer2 = nn.Linear(5, 9), nn.Linear(9, 3)
scale = nn.Parameter(torch.ones(9))
opt = torch.optim.SGD([*layer1.parameters(), *layer2.parameters(), scale], lr=0.2)
x = torch.randn(45, 5)
y = x[:, :3].argmax(1)
for epoch in range(4):
    for rows in torch.randperm(45).split(10):
        h = layer1.forward(x[rows])
        h = F.layer_norm(h, (9,), scale).relu()
        loss = F.cross_entropy(F.linear(h, layer2.weight, layer2.bias), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch}: loss {loss.item():.10f}")
