import os

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(10)

device = 'cuda' if torch.cuda.is_available() else 'cpu'
best_acc = 0  # best test accuracy
start_epoch = 0  # start from epoch 0 or last checkpoint epoch

# Data
print('==> Preparing data..')
torus = 2 * 3.14159265 * torch.rand(310, 2)
cloud = torch.stack([(2 + torus[:, 0].cos()) * torus[:, 1].cos(),
                     (2 + torus[:, 0].cos()) * torus[:, 1].sin(),
                     torus[:, 0].sin()], dim=1)
group = (torus[:, 1] / 3.14159265 * 2).long() % 4
cloud += 0.15 * torch.randn(cloud.shape)
trainloader = DataLoader(TensorDataset(cloud[:219], group[:219]), batch_size=50, shuffle=True, num_workers=0,
                         pin_memory=torch.cuda.is_available())
testloader = DataLoader(TensorDataset(cloud[219:], group[219:]), batch_size=40, shuffle=False, num_workers=0)


class PointNet(nn.Module):
    def __init__(self):
        super(PointNet, self).__init__()
        self.fc1 = nn.Linear(3, 48)
        self.bn1 = nn.BatchNorm1d(48)
        self.fc2 = nn.Linear(48, 48)
        self.bn2 = nn.BatchNorm1d(48)
        self.linear = nn.Linear(48, 4)

    def forward(self, x):
        out = F.relu(self.bn1(self.fc1(x)))
        out = F.relu(self.bn2(self.fc2(out)))
        return self.linear(F.dropout(out, p=0.2, training=self.training))


# Model
print('==> Building model..')
net = PointNet()
net = net.to(device)
if torch.cuda.device_count() > 1:
    print('Using', torch.cuda.device_count(), 'GPUs')
    net = torch.nn.DataParallel(net)
if device == 'cuda':
    cudnn.benchmark = False

criterion = nn.CrossEntropyLoss().to(device)
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)


def train(epoch):
    print('\nEpoch: %d' % epoch)
    net.train()
    train_loss = 0
    correct = 0
    total = 0
    for batch_idx, (inputs, targets) in enumerate(trainloader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()

        train_loss += loss.item()
        _, predicted = outputs.max(1)
        total += targets.size(0)
        correct += predicted.eq(targets).sum().item()
        print('%d/%d Loss: %.10f | Acc: %.10f%% (%d/%d)' % (
            batch_idx, len(trainloader), train_loss / (batch_idx + 1), 100. * correct / total, correct, total))


def test(epoch):
    global best_acc
    net.eval()
    test_loss = 0
    correct = 0
    total = 0
    with torch.no_grad():
        for inputs, targets in testloader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = net(inputs)
            test_loss += criterion(outputs, targets).item()
            _, predicted = outputs.max(1)
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
    acc = 100. * correct / total
    print('Test Loss: %.10f | Acc: %.10f%%' % (test_loss / len(testloader), acc))
    if acc > best_acc:
        print('Saving..')
        model = net.module if hasattr(net, 'module') else net
        if not os.path.isdir('checkpoint'):
            os.mkdir('checkpoint')
        torch.save({'net': model.state_dict(), 'acc': acc, 'epoch': epoch}, './checkpoint/ckpt.pth')
        best_acc = acc


for epoch in range(start_epoch, start_epoch + 5):
    train(epoch)
    test(epoch)
    scheduler.step()
