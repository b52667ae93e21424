"""Reads MNIST (IDX files) and CIFAR-10 (binary batches) with numpy, or draws images of the same shapes."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MNIST_MEAN, MNIST_STD = (0.1307,), (0.3081,)

CIFAR10_FILES = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR10_RECORD = 1 + 3 * 32 * 32  # one byte of label, then the red, green and blue planes


def mnist(folder: Path, split: str) -> TensorDataset:
    """Read one split of MNIST; its files may be compressed."""
    images, labels = (read(folder, name) for name in MNIST_FILES[split])
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return normalized(pixels, np.frombuffer(labels, np.uint8, offset=8), MNIST_MEAN, MNIST_STD)


def cifar10(folder: Path, split: str) -> TensorDataset:
    """Read one split of CIFAR-10 in its binary version; its files may be compressed."""
    content = b"".join(read(folder, name) for name in CIFAR10_FILES[split])
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR10_RECORD)
    return normalized(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], CIFAR10_MEAN, CIFAR10_STD)


def synthetic(shape: tuple[int, int, int], count: int, *, seed: int) -> TensorDataset:
    """Draw images of ten classes: the pattern of the class, under noise."""
    patterns = torch.randn(10, *shape, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, *shape, generator=generator)
    return TensorDataset((patterns[labels] + 2 * noise) / 5**0.5, labels)


def read(folder: Path, name: str) -> bytes:
    """Return the content of a file that is in the folder as it is or compressed."""
    for suffix, opener in OPENERS.items():
        path = folder / f"{name}{suffix}"
        if path.is_file():
            with opener(path, "rb") as file:
                return file.read()
    message = f"{folder} has no {name}; give the folder of its files, or --synthetic"
    raise FileNotFoundError(message)


def normalized(
    pixels: np.ndarray, labels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]
) -> TensorDataset:
    """Scale the pixels to mean 0 and standard deviation 1 in each channel."""
    images = torch.from_numpy(pixels.copy()).float() / 255
    center, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return TensorDataset((images - center) / scale, torch.from_numpy(labels.astype(np.int64)))
