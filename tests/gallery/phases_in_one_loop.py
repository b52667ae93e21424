import copy
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
random.seed(3)
np.random.seed(3)
torch.manual_seed(3)


class Blobs(Dataset):
    """Two bright spots in a colour image: ants have them side by side, bees above each other."""

    def __init__(self, n, augment):
        self.labels = np.random.randint(0, 2, size=n)
        self.images = np.random.randn(n, 3, 10, 10) * 0.8
        for i, label in enumerate(self.labels):
            r, c = np.random.randint(1, 6, size=2)
            dr, dc = (0, 3) if label == 0 else (3, 0)
            self.images[i, :, r:r + 2, c:c + 2] += 1.4
            self.images[i, :, r + dr:r + dr + 2, c + dc:c + dc + 2] += 1.4
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i])
        if self.augment and random.random() < 0.5:
            image = torch.flip(image, dims=[2])
        return image, int(self.labels[i])


image_datasets = {"train": Blobs(197, True), "val": Blobs(83, False)}
dataloaders = {x: DataLoader(image_datasets[x], batch_size=16, shuffle=True, num_workers=0)
               for x in ["train", "val"]}
dataset_sizes = {x: len(image_datasets[x]) for x in ["train", "val"]}
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def train_model(model, criterion, optimizer, scheduler, num_epochs=25):
    since = time.time()
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0

    for epoch in range(num_epochs):
        print(f"Epoch {epoch}/{num_epochs - 1}")
        print("-" * 10)

        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0

            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()

                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()

                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            if phase == "train":
                scheduler.step()

            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects.double() / dataset_sizes[phase]
            print(f"{phase} Loss: {epoch_loss:.10f} Acc: {epoch_acc:.10f}")

            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
        print()

    time_elapsed = time.time() - since
    print(f"Training time: {time_elapsed // 60:.0f}m {time_elapsed % 60:.0f}s")
    print(f"Best val Acc: {best_acc:.10f}")
    model.load_state_dict(best_model_wts)
    return model


model_ft = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
)
model_ft.add_module("fc", nn.Linear(12, 2))
model_ft = model_ft.to(device)
optimizer_ft = optim.SGD(model_ft.parameters(), lr=0.05, momentum=0.9)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_ft, step_size=3, gamma=0.3)
model_ft = train_model(model_ft, nn.CrossEntropyLoss(), optimizer_ft, exp_lr_scheduler, num_epochs=5)
torch.save(model_ft.state_dict(), "best_model_params.pt")
