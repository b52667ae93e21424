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
    """A network, the data that it trains on, the size of a batch, and the processes that load the data."""

    model: nn.Module
    data: Dataset[tuple[Tensor, Tensor]]
    batch_size: int
    loaders: int = 0


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


def _of_time(times: Tensor, width: int) -> Tensor:
    """Return sines and cosines of diffusion times: batch x width."""
    rates = torch.exp(torch.arange(width // 2) * -(9.2 / (width // 2)))
    angles = times[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Residual(nn.Module):
    """Two convolutions with group norm, shifted by the embedding of a diffusion time."""

    def __init__(self, given: int, width: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, given), nn.SiLU(), nn.Conv2d(given, width, 3, padding=1))
        self.shift = nn.Linear(time, width)
        self.second = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.skip = nn.Conv2d(given, width, 1) if given != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return features of the same size."""
        return self.second(self.first(x) + self.shift(time)[:, :, None, None]) + self.skip(x)


class UNet(nn.Module):
    """A diffusion U-Net for noisy images, which predicts their noise; one input has image and time."""

    def __init__(self, *, channels: int = 3, width: int = 32, time: int = 64) -> None:
        super().__init__()
        self.time = time
        self.begin = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList(
            [
                Residual(width, width, time),
                Residual(width, 2 * width, time),
                Residual(2 * width, 2 * width, time),
            ]
        )
        self.middle = Residual(2 * width, 2 * width, time)
        self.up = nn.ModuleList(
            [
                Residual(4 * width, 2 * width, time),
                Residual(4 * width, width, time),
                Residual(2 * width, width, time),
            ]
        )
        self.end = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, channels, 3, padding=1))

    def forward(self, noisy: Tensor) -> Tensor:
        """Return the noise; the time of an image is the mean of its pixels, in thousandths."""
        time = _of_time(1000 * noisy.mean((1, 2, 3)).abs(), self.time)
        x, kept = self.begin(noisy), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), time)
        return self.end(x)


class Modulated(nn.Module):
    """A block of a diffusion transformer, whose norms are scaled and shifted by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = (
            nn.LayerNorm(width, elementwise_affine=False),
            nn.MultiheadAttention(width, heads, batch_first=True),
        )
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.condition = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.condition.weight)
        nn.init.zeros_(self.condition.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return tokens of the same shape: batch x tokens x width."""
        shift, scale, gate, shift2, scale2, gate2 = self.condition(condition)[:, None].chunk(6, -1)
        given = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.attention(given, given, given, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)


class Dit(nn.Module):
    """A diffusion transformer on patches of noisy images, which predicts their noise."""

    def __init__(self, *, channels: int = 3, side: int = 32, width: int = 128, layers: int = 6) -> None:
        super().__init__()
        patch = 4
        self.width = width
        self.begin = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2, width) / width**0.5)
        self.of_time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([Modulated(width, 4) for _ in range(layers)])
        self.end = nn.ConvTranspose2d(width, channels, patch, patch)

    def forward(self, noisy: Tensor) -> Tensor:
        """Return the noise; the time of an image is the mean of its pixels, in thousandths."""
        condition = self.of_time(_of_time(1000 * noisy.mean((1, 2, 3)).abs(), self.width))
        x = self.begin(noisy)
        tokens = x.flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self.end(tokens.transpose(1, 2).reshape(x.shape))


class Denoised(nn.Module):
    """Scores of an image: the mean of the predicted noise of each of ten parts of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, noisy: Tensor) -> Tensor:
        """Return ten numbers for each image, as the loss of the benchmarks' scripts takes them."""
        return F.adaptive_avg_pool1d(self.model(noisy).flatten(1), 10)


def _diffusion(model: nn.Module, batch_size: int) -> Problem:
    count = batch_size * _BATCHES
    data = TensorDataset(torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,)))
    return Problem(Denoised(model), data, batch_size)


def _images(model: str, batch_size: int, *shape: int) -> Problem:
    count = batch_size * _BATCHES
    data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
    return Problem(build(model, shape=shape, classes=10), data, batch_size)


def _gpt(batch_size: int) -> Problem:
    tokens = torch.randint(0, 512, (batch_size * _BATCHES, 65))
    return Problem(Gpt(), TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size)


def _perceptron(batch_size: int) -> Problem:
    """A step of 0.3 ms: what is measured is what a call costs."""
    count = batch_size * _BATCHES
    data = TensorDataset(torch.randn(count, 20), torch.randint(0, 10, (count,)))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))
    return Problem(model, data, batch_size)


def _loader(batch_size: int, loaders: int) -> Problem:
    side = 128
    inputs = 3 * (side // _SMALLER) ** 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 10))
    return Problem(model, CompressedImages(batch_size * _BATCHES, side), batch_size, loaders)


PROBLEMS = {
    "convnet-64": lambda: _images("convnet", 64, 1, 28, 28),
    "convnet-256": lambda: _images("convnet", 256, 1, 28, 28),
    "resnet18-32": lambda: _images("resnet18", 32, 3, 32, 32),
    "gpt-16": lambda: _gpt(16),
    "unet-16": lambda: _diffusion(UNet(), 16),
    "dit-16": lambda: _diffusion(Dit(), 16),
    "mlp-32": lambda: _perceptron(32),
    "slow-loader-64": lambda: _loader(64, 0),
    "slow-loader-64-processes": lambda: _loader(64, 2),
}
