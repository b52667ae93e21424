"""Compares files that scripts have written."""

import sqlite3
import warnings
from contextlib import closing

import numpy as np
import torch

from samestep.hooks.tensor_tree import leaves
from support.script_runner import difference


def files(folder):
    """Return the names of the files in a folder and those in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def same_contents(one, other):
    """Return whether two files hold the same numbers, but for rounding."""
    if one.suffix == ".db":
        return dumped(one) == dumped(other)
    if one.suffix in (".npy", ".npz"):
        return all(close(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))
    try:
        first, second = (dict(tensors_of(path)) for path in (one, other))
    except Exception:
        return difference(one.read_text(), other.read_text()) is None
    return first.keys() == second.keys() and all(close(first[path], second[path]) for path in first)


def dumped(path):
    """Return the SQL statements that create a copy of a database."""
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump()]


def arrays(path):
    """Return the arrays in a file of NumPy's."""
    loaded = np.load(path)
    return list(loaded.values()) if path.suffix == ".npz" else [loaded]


def tensors_of(path):
    """Return the tensors in a file of torch's, each with its path."""
    if path.suffix == ".jit":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path).state_dict().items()
    value = torch.load(path, weights_only=False)
    return leaves(value.state_dict() if isinstance(value, torch.nn.Module) else value)


def close(one, other):
    """Return whether weights are equal but for rounding, which a line search magnifies."""
    return one.shape == other.shape and np.allclose(np.asarray(one), np.asarray(other), rtol=1e-6, atol=1e-8)
