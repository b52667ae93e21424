import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
data = TensorDataset(torch.randn(80, 6), torch.randint(0, 2, (80,)))
train_data, valid_data = random_split(data, [48, 32])
train_loader = DataLoader(train_data, batch_size=16)
valid_loader = DataLoader(valid_data, batch_size=16)
net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()


def validate():
    total = 0.0
    with torch.no_grad():
        for x, y in valid_loader:
            total += loss_fn(net(x), y).item()
    return total / len(valid_loader)


for epoch in range(3):
    net.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss_fn(net(x), y).backward()
        optimizer.step()
    print("epoch", epoch, "validation loss", round(validate(), 4))
