import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(1234)

# Hyper-parameters
num_epochs = 4
num_classes = 4
batch_size = 32
learning_rate = 0.002


def make_images(n):
    """12x12 images with a bar whose direction is the class."""
    labels = torch.randint(0, num_classes, (n,))
    images = 0.6 * torch.randn(n, 1, 12, 12)
    for i, label in enumerate(labels.tolist()):
        shift = int(torch.randint(2, 10, (1,)))
        if label == 0:
            images[i, 0, shift, :] += 1.5
        elif label == 1:
            images[i, 0, :, shift] += 1.5
        elif label == 2:
            images[i, 0] += 1.5 * torch.eye(12)
        else:
            images[i, 0] += 1.5 * torch.eye(12).flip(0)
    return images, labels


train_dataset = TensorDataset(*make_images(203))
test_dataset = TensorDataset(*make_images(71))

train_loader = DataLoader(dataset=train_dataset, batch_size=batch_size, shuffle=True)
test_loader = DataLoader(dataset=test_dataset, batch_size=50, shuffle=False)


class ConvNet(nn.Module):
    def __init__(self, num_classes):
        super(ConvNet, self).__init__()
        self.layer1 = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2))
        self.layer2 = nn.Sequential(
            nn.Conv2d(8, 16, kernel_size=3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2, stride=2))
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(3 * 3 * 16, num_classes)

    def forward(self, x):
        out = self.layer1(x)
        out = self.layer2(out)
        out = out.reshape(out.size(0), -1)
        return self.fc(self.drop(out))


model = ConvNet(num_classes)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

# Train the model
start = time.time()
total_step = len(train_loader)
for epoch in range(num_epochs):
    for i, (images, labels) in enumerate(train_loader):
        outputs = model(images)
        loss = criterion(outputs, labels)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if (i + 1) % 3 == 0:
            print("Epoch [{}/{}], Step [{}/{}], Loss: {:.10f}".format(
                epoch + 1, num_epochs, i + 1, total_step, loss.item()))
print("Training took {:.2f} seconds".format(time.time() - start))

# Test the model
model.eval()
with torch.no_grad():
    correct = 0
    total = 0
    test_loss = 0.0
    for images, labels in test_loader:
        outputs = model(images)
        test_loss += F.cross_entropy(outputs, labels, reduction="sum").item()
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()

    print("Test loss: {:.10f}".format(test_loss / total))
    print("Test Accuracy of the model on the {} test images: {:.10f} %".format(total, 100 * correct / total))

# Save the model checkpoint
torch.save(model.state_dict(), "model.ckpt")
