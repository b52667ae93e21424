"""The options that the training scripts of this folder share, and the data sets that they ask for."""

import argparse
from lzma import LZMAError
from pathlib import Path

from data import cifar10, mnist, synthetic
from place import refuse
from torch.utils.data import TensorDataset

READERS = {"mnist": (mnist, (1, 28, 28)), "cifar10": (cifar10, (3, 32, 32))}


def training_parser(description: str, *, batch_size: int, lr: float) -> argparse.ArgumentParser:
    """Return a parser with the options of every training script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data set's files")
    parser.add_argument("--synthetic", action="store_true", help="draw images rather than read files")
    parser.add_argument("--subset", type=int, metavar="N", help="use the first N samples of each split")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="global: of all workers together")
    parser.add_argument("--lr", type=float, default=lr, help="learning rate")
    parser.add_argument("--norm", choices=["batch", "group"], default="batch", help="normalization layers")
    # torch.distributed.launch passes it; LOCAL_RANK has the same number under every launcher of torch.
    parser.add_argument("--local-rank", "--local_rank", type=int, help="not used")
    return parser


def parsed(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """Return the options, or end with one line and exit code 2 if they do not fit together."""
    options = parser.parse_args(words)
    if (options.data is None) != options.synthetic:
        parser.error("give either --data DIR or --synthetic")
    for name in ("subset", "epochs", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}; give at least 1")
    return options


def data_sets(options: argparse.Namespace, name: str) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test samples, the first --subset of each."""
    train_set, test_set = whole_sets(options, name)
    if options.subset:
        train_set, test_set = (TensorDataset(*one[: options.subset]) for one in (train_set, test_set))
    if len(train_set) < options.batch_size:
        refuse(f"--batch-size is {options.batch_size}; give at most {len(train_set)}, the number of samples")
    return train_set, test_set


def whole_sets(options: argparse.Namespace, name: str) -> tuple[TensorDataset, TensorDataset]:
    reader, shape = READERS[name]
    if options.synthetic:
        return synthetic(shape, 1920, seed=1), synthetic(shape, 1000, seed=2)
    try:
        return reader(options.data, "train"), reader(options.data, "test")
    except (OSError, ValueError, EOFError, LZMAError) as error:
        refuse(f"--data is {options.data}: {error}")


def batch_share(options: argparse.Namespace, world_size: int) -> int:
    """Return how many samples of each global batch a worker gets."""
    if options.batch_size % world_size:
        refuse(
            f"--batch-size is {options.batch_size}; give a multiple of {world_size}, the number of workers"
        )
    return options.batch_size // world_size
