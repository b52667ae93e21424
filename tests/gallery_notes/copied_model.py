import copy

import torch
from torch import nn

torch.manual_seed(0)
X, y = torch.randn(96, 10), torch.randint(0, 4, (96,))

template = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(template.parameters(), lr=0.01)
model = copy.deepcopy(template)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    for batch in torch.arange(96).split(24):
        optimizer.zero_grad()
        loss = criterion(model(X[batch]), y[batch])
        loss.backward()
        optimizer.step()
    print('epoch', epoch, 'loss', '%.3f' % loss.item())
