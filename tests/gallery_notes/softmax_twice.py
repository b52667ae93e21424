import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(8, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return F.softmax(self.fc2(x), dim=1)


torch.manual_seed(0)
X, Y = torch.randn(64, 8), torch.randint(0, 4, (64,))
net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(4):
    for i in range(0, 64, 32):
        optimizer.zero_grad()
        loss = criterion(net(X[i:i + 32]), Y[i:i + 32])
        loss.backward()
        optimizer.step()
    print('[%d] loss: %.3f' % (epoch + 1, loss.item()))
