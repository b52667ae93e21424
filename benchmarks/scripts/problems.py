"""Networks and data of several kinds that scripts of benchmarks train."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from samestep.training.networks import build

_BATCHES = 40
"""Batches of an epoch; memory holds them in each process."""
_SMALLER = 4
"""Pixels of a side that become one."""


@dataclass(frozen=True)
class Problem:
    """A network, the data that it trains on, and the size of a batch."""

    model: nn.Module
    data: Dataset[tuple[Tensor, Tensor]]
    batch_size: int


class CompressedImages(Dataset[tuple[Tensor, Tensor]]):
    """Images that are decompressed, normalized and scaled down one by one: longer work than the network's."""

    def __init__(self, count: int, side: int) -> None:
        noise = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
        self._images = [zlib.compress(one.numpy().tobytes(), 1) for one in noise]
        self._shape = (3, side, side)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = np.frombuffer(zlib.decompress(self._images[index]), dtype=np.uint8)
        image = torch.from_numpy(pixels.reshape(self._shape).astype(np.float32))
        return F.avg_pool2d((image - image.mean()) / image.std(), _SMALLER), torch.tensor(index % 10)


class Gpt(nn.Module):
    """A small transformer that predicts the next token."""

    def __init__(self, *, tokens: int = 512, width: int = 128, length: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token: batch x tokens x length, as the loss takes them."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.blocks(x, mask=self.mask)).transpose(1, 2)


def _images(model: str, batch_size: int, *shape: int) -> Problem:
    count = batch_size * _BATCHES
    data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
    return Problem(build(model, shape=shape, classes=10), data, batch_size)


def _gpt(batch_size: int) -> Problem:
    tokens = torch.randint(0, 512, (batch_size * _BATCHES, 65))
    return Problem(Gpt(), TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size)


def _loader(batch_size: int) -> Problem:
    side = 128
    inputs = 3 * (side // _SMALLER) ** 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 10))
    return Problem(model, CompressedImages(batch_size * _BATCHES, side), batch_size)


PROBLEMS = {
    "convnet-64": lambda: _images("convnet", 64, 1, 28, 28),
    "convnet-256": lambda: _images("convnet", 256, 1, 28, 28),
    "resnet18-32": lambda: _images("resnet18", 32, 3, 32, 32),
    "gpt-16": lambda: _gpt(16),
    "slow-loader-64": lambda: _loader(64),
}
