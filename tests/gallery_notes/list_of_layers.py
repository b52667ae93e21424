import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.hidden = [nn.Linear(16, 16) for _ in range(depth)]
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.out(x)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = MLP()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
