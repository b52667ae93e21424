"""Classifies images with a residual network with batch norm, channels-last: ``images.py fp32|bf16``."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


labels = torch.arange(160) % 5
images = torch.randn(160, 3, 12, 12) + torch.randn(5, 3, 12, 12)[labels]
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
layers = Residual(3, 16, 1), Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)
model = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for x, y in loader:
    with torch.autocast(device, torch.bfloat16, enabled=sys.argv[1] == "bf16"):
        scores = model(x.to(device, memory_format=torch.channels_last))
    loss = F.cross_entropy(scores.float(), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")

model.eval()
with torch.no_grad():
    scores = torch.cat([model(part.to(device)) for part in images.split(48)])
print(f"loss {F.cross_entropy(scores, labels.to(device)).item():.6f}")
