import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        return self.fc(self.features(x))


torch.manual_seed(0)
model = Backbone(1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model.fc = nn.Linear(32, 5)  # our classes

X, y = torch.randn(96, 10), torch.randint(0, 5, (96,))
for epoch in range(2):
    for batch in torch.arange(96).split(24):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(X[batch]), y[batch])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}")
