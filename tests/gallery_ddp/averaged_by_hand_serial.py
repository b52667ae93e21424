"""The course's network, on one worker."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2 = nn.Conv2d(6, 8, kernel_size=3)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(self.conv2(x)).flatten(1)
        return F.log_softmax(self.fc(x), dim=1)


torch.set_default_dtype(torch.float64)
torch.manual_seed(1234)
g = torch.Generator().manual_seed(5)
labels = torch.arange(96) % 4
images = torch.randn(4, 1, 8, 8, generator=g)[labels] + 0.5 * torch.randn(96, 1, 8, 8, generator=g)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
shuffler = random.Random(1234)
indices = list(range(96))
for epoch in range(6):
    shuffler.shuffle(indices)
    epoch_loss = 0.0
    for start in range(0, 96, 24):
        chosen = indices[start:start + 24]
        optimizer.zero_grad()
        loss = F.nll_loss(model(images[chosen]), labels[chosen])
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
    print("Epoch {}: {:.10f}".format(epoch, epoch_loss / 4))
