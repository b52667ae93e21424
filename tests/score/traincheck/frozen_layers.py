"""Transfer learning freezes the classifier and all layers but batch norm: next to nothing is trained."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = "wrong" in sys.argv[1:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def main():
    torch.manual_seed(0)
    labels = torch.arange(192) % 4
    images = torch.randn(192, 1, 10, 10) + labels[:, None, None, None] * torch.eye(10)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    model = Net()
    for name, parameter in model.named_parameters():
        if WRONG and "bn" not in name:
            parameter.requires_grad = False
    if WRONG:
        for parameter in model.fc.parameters():
            parameter.requires_grad = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(3):
        correct = 0
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            nn.functional.cross_entropy(outputs, targets).backward()
            optimizer.step()
            correct += (outputs.argmax(1) == targets).sum().item()
        print(f"epoch {epoch}: accuracy {correct / len(labels):.3f}")


if __name__ == "__main__":
    main()
