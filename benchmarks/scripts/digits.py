"""MNIST as tutorials load it: one image after the other, each through its transforms."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Digits(Dataset):
    """The training images, from the published files."""

    def __init__(self, folder):
        images = gzip.decompress((Path(folder) / "train-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((Path(folder) / "train-labels-idx1-ubyte.gz").read_bytes())
        self.images = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
        self.labels = np.frombuffer(labels, np.uint8, offset=8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index].copy()).unsqueeze(0)
        return image.float().div(255).sub(0.1307).div(0.3081), int(self.labels[index])


class Net(nn.Module):
    """Two 3x3 convolutions and two linear layers, 1.2 million parameters."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)
        )
        self.scores = nn.Sequential(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))

    def forward(self, images):
        """Return scores."""
        return self.scores(self.features(images).flatten(1))
