"""samestep runs PyTorch training on N workers with the steps and the result of one.

The public names load lazily: importing ``samestep`` never imports torch, so ``samestep --help`` answers
at once on a login node.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from samestep.autopilot.declared import split
    from samestep.base.errors import Error
    from samestep.base.place import Place
    from samestep.checkpoint.foreign import load_state
    from samestep.checkpoint.scripts import load, save
    from samestep.data.sampler import UnpaddedSampler
    from samestep.data.shard import shard
    from samestep.exact.shards import Exact
    from samestep.launch.spawn import spawn
    from samestep.replicas.replicate import accumulate, replicate
    from samestep.world.join import join
    from samestep.world.timed import timed
    from samestep.world.world import World

_HOMES = {
    "Error": "samestep.base.errors",
    "Exact": "samestep.exact.shards",
    "Place": "samestep.base.place",
    "UnpaddedSampler": "samestep.data.sampler",
    "World": "samestep.world.world",
    "accumulate": "samestep.replicas.replicate",
    "join": "samestep.world.join",
    "load": "samestep.checkpoint.scripts",
    "load_state": "samestep.checkpoint.foreign",
    "replicate": "samestep.replicas.replicate",
    "save": "samestep.checkpoint.scripts",
    "shard": "samestep.data.shard",
    "spawn": "samestep.launch.spawn",
    "split": "samestep.autopilot.declared",
    "timed": "samestep.world.timed",
}

__all__ = [
    "Error",
    "Exact",
    "Place",
    "UnpaddedSampler",
    "World",
    "accumulate",
    "join",
    "load",
    "load_state",
    "replicate",
    "save",
    "shard",
    "spawn",
    "split",
    "timed",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
