"""Classifies small images with dropout; the loaders of training and of evaluation have worker processes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.allow_tf32 = False


class Squares(Dataset):
    """Images of 14 x 14 pixels with a square at one of four places; the place is the label."""

    def __init__(self, count, seed):
        self.noise = torch.randn(count, 1, 14, 14, generator=torch.Generator().manual_seed(seed)) / 3

    def __len__(self):
        return len(self.noise)

    def __getitem__(self, index):
        label, image = index % 4, self.noise[index].clone()
        row, column = 7 * (label // 2), 7 * (label % 2)
        image[:, row : row + 7, column : column + 7] += 1
        return image, label


def main():
    torch.manual_seed(3)
    loading = {"num_workers": 2, "pin_memory": device == "cuda"}
    training = DataLoader(Squares(96, 1), batch_size=24, shuffle=True, **loading)
    testing = DataLoader(Squares(40, 2), batch_size=40, **loading)
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(288, 4)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(2):
        model.train()
        for images, labels in training:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            losses = [
                F.cross_entropy(model(images.to(device)), labels.to(device), reduction="sum").item()
                for images, labels in testing
            ]
        print(f"loss {sum(losses) / len(testing.dataset):.6f}")
        schedule.step()


if __name__ == "__main__":
    main()
