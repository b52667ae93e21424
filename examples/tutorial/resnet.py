"""ResNet-34 for images of 32 x 32 pixels: a 3 x 3 stem without pooling, then 3, 4, 6 and 3 blocks."""

import torch
from convnet import norm_layer
from torch import nn

BLOCKS = (3, 4, 6, 3)


class Block(nn.Module):
    """Two 3 x 3 convolutions and the shortcut around them."""

    def __init__(self, channels: int, features: int, stride: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, features, 3, stride, padding=1, bias=False),
            norm_layer(norm, features),
            nn.ReLU(),
            nn.Conv2d(features, features, 3, padding=1, bias=False),
            norm_layer(norm, features),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or channels != features:
            projection = nn.Conv2d(channels, features, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm_layer(norm, features))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet34(norm: str = "batch", width: int = 64) -> nn.Sequential:
    """Return ResNet-34; `width` is the number of features of its first group, 64 in the paper."""
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), norm_layer(norm, width), nn.ReLU()]
    channels = width
    for group, blocks in enumerate(BLOCKS):
        features = width * 2**group
        for number in range(blocks):
            stride = 2 if group > 0 and number == 0 else 1
            layers.append(Block(channels, features, stride, norm))
            channels = features
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
