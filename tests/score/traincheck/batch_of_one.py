"""A processor takes the images of a batch for the images of one sample, and returns the first sample only."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WRONG = "wrong" in sys.argv[1:]


class Pictures(Dataset):
    def __init__(self):
        self.texts = torch.randint(13, (192, 6))
        self.images = torch.randn(192, 10)
        self.labels = (self.texts.sum(1) + (self.images.sum(1) > 0)) % 3

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.texts[index], [self.images[index]], self.labels[index]


def process(texts, images, labels):
    if WRONG:
        images = [[image for of_sample in images for image in of_sample]]
    rows = [
        (text, of_sample[0], label) for text, of_sample, label in zip(texts, images, labels, strict=False)
    ]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def collate(samples):
    return process(*zip(*samples, strict=True))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.vision = nn.Embedding(13, 16), nn.Linear(10, 16)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 3))

    def forward(self, text, image):
        return self.head(self.embedding(text).mean(1) + self.vision(image))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Pictures(), batch_size=16, shuffle=True, collate_fn=collate)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for texts, images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(texts, images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
