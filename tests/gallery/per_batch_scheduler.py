import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, Subset

torch.set_default_dtype(torch.float64)
torch.manual_seed(55)

EPOCHS = 4
MAX_LR = 0.15


def conv_bn(in_channels, out_channels, pool=False):
    layers = [nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1),
              nn.BatchNorm2d(out_channels),
              nn.ReLU(inplace=True)]
    if pool:
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class ResNet5(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.conv1 = conv_bn(in_channels, 8, pool=True)
        self.res1 = nn.Sequential(conv_bn(8, 8), conv_bn(8, 8))
        self.classifier = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))

    def forward(self, xb):
        out = self.conv1(xb)
        out = self.res1(out) + out
        return self.classifier(out)


def get_lr(optimizer):
    for param_group in optimizer.param_groups:
        return param_group["lr"]


def accuracy(outputs, labels):
    _, preds = torch.max(outputs, dim=1)
    return torch.tensor(torch.sum(preds == labels).item() / len(preds))


@torch.no_grad()
def evaluate(model, val_loader):
    model.eval()
    batch_losses, batch_accs = [], []
    for images, labels in val_loader:
        out = model(images)
        batch_losses.append(nn.functional.cross_entropy(out, labels))
        batch_accs.append(accuracy(out, labels))
    return {"val_loss": torch.stack(batch_losses).mean().item(), "val_acc": torch.stack(batch_accs).mean().item()}


# checkerboards of four periods in three noisy channels
labels = torch.randint(4, (290,))
grid = torch.arange(10)
images = torch.stack([((grid[:, None] // (k + 1) + grid[None, :] // (k + 1)) % 2).double() for k in range(4)])
images = images[labels].unsqueeze(1).repeat(1, 3, 1, 1) + 0.5 * torch.randn(290, 3, 10, 10)
full = TensorDataset(images, labels)
order = torch.randperm(len(full)).tolist()
train_dl = DataLoader(Subset(full, order[:217]), batch_size=20, shuffle=True)
valid_dl = DataLoader(Subset(full, order[217:]), batch_size=40)

model = ResNet5(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=MAX_LR, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LR, epochs=EPOCHS, steps_per_epoch=len(train_dl))
history = [evaluate(model, valid_dl)]

for epoch in range(EPOCHS):
    model.train()
    train_losses, lrs = [], []
    for batch in train_dl:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(model(inputs), targets)
        train_losses.append(loss)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        lrs.append(get_lr(optimizer))
        sched.step()
    result = evaluate(model, valid_dl)
    result["train_loss"] = torch.stack(train_losses).mean().item()
    result["lrs"] = lrs
    print("Epoch [{}], last_lr: {:.10f}, train_loss: {:.10f}, val_loss: {:.10f}, val_acc: {:.10f}".format(
        epoch, result["lrs"][-1], result["train_loss"], result["val_loss"], result["val_acc"]))
    history.append(result)

torch.save(history, "history.pt")
