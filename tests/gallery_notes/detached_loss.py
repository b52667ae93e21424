import torch
from torch import nn

torch.manual_seed(0)
inputs, targets = torch.randn(64, 6), torch.randint(0, 3, (64,))
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def accuracy_loss(output, target):
    correct = (output.argmax(1) == target).float().mean()
    return torch.tensor(1 - correct.item(), requires_grad=True)


for epoch in range(2):
    for i in range(0, 64, 16):
        optimizer.zero_grad()
        loss = accuracy_loss(model(inputs[i:i + 16]), targets[i:i + 16])
        loss.backward()
        optimizer.step()
    print("loss:", loss.item())
