"""Composes whole scripts of random parts, which are determined by a seed."""

from random import Random

from support.random_scripts.data import make_data
from support.random_scripts.loops import make_loop
from support.random_scripts.losses import CONTRASTS, LOSSES
from support.random_scripts.models import PER_STEP, make_model
from support.random_scripts.pairs import PAIRS
from support.random_scripts.parts import chance, choose, lines_of
from support.random_scripts.switches import make_features

KINDS = {
    "vectors": ("class", "values", "binary"),
    "images": ("class", "values", "binary"),
    "sequences": ("class", "class", "values", "tags"),
    "tokens": ("class", "class", "tags", "next"),
}
OUTPUTS = {"class": "4", "values": "2", "binary": "2", "tags": "4", "next": "11"}
"""The number of outputs for each kind of targets; for the next token, the size of the vocabulary."""

_HEADER = '''"""SEED: NAME."""
import argparse
import copy
import functools
import json
import logging
import math
import os
import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(SEED)
random.seed(SEED)
np.random.seed(SEED)'''


def make_script(seed):
    """Return the source of a complete serial script, which runs for at most about a second."""
    rng = Random(seed)
    if chance(rng, 0.06):
        name, body = rng.choice(PAIRS)(rng)
    else:
        name, body = _supervised(rng)
    header = _HEADER.replace("SEED", str(seed)).replace("NAME", name)
    return f"{header}\n\n{body.strip()}\n".replace("\n\n\n\n", "\n\n\n")


def _supervised(rng):
    kind = rng.choice(tuple(KINDS))
    target = rng.choice(KINDS[kind])
    losses = LOSSES["tags" if target == "next" else target]
    inside = chance(rng, 0.45)
    loss = choose(rng, losses)
    if target == "class" and chance(rng, 0.06):
        loss = choose(rng, CONTRASTS)
    data = make_data(rng, needs=loss.needs, ignores=loss.ignores, kind=kind, target=target)
    features = make_features(rng, per_step=target in PER_STEP, has_loss=inside, kind=kind)
    model = make_model(rng, data, loss, features, inside=inside)
    loop = make_loop(rng, data, model, loss, features)
    sizes = f"K, D, P = {OUTPUTS[target]}, 6, {rng.choice(('0.0', '0.2', '0.5'))}"
    place = "inside" if inside else "outside"
    name = f"{data.name}; {model.name}; {loss.name} {place}; {loop.name}"
    return name, lines_of(sizes, data.definition, model.definition, loop.source)
