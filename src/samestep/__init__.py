"""samestep runs PyTorch training on N workers with the steps and the result of one.

The public names load lazily: importing ``samestep`` never imports torch, so ``samestep --help`` answers
at once on a login node.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from samestep import errors
    from samestep.autopilot.once_script import workers
    from samestep.autopilot.split.call_arguments import batch_dim
    from samestep.base.errors import Error
    from samestep.base.place import Place
    from samestep.launch.local.spawn import spawn
    from samestep.parallel.exact.logical_shards import Exact, LogicalShard
    from samestep.parallel.gradients.replicate import Replicas, accumulate, replicate
    from samestep.parallel.sharding import Position
    from samestep.ranks.world.join import join
    from samestep.ranks.world.protocol import Work, World
    from samestep.ranks.world.timed_region import TimedRegion, timed
    from samestep.training.checkpoint.scripts import load, load_weights, save
    from samestep.training.data.shard import shard
    from samestep.training.data.sharded_loader import ShardedLoader, UnpaddedSampler

_HOMES = {
    "Error": "samestep.base.errors",
    "Exact": "samestep.parallel.exact.logical_shards",
    "LogicalShard": "samestep.parallel.exact.logical_shards",
    "Place": "samestep.base.place",
    "Position": "samestep.parallel.sharding",
    "Replicas": "samestep.parallel.gradients.replicate",
    "ShardedLoader": "samestep.training.data.sharded_loader",
    "TimedRegion": "samestep.ranks.world.timed_region",
    "UnpaddedSampler": "samestep.training.data.sharded_loader",
    "Work": "samestep.ranks.world.protocol",
    "World": "samestep.ranks.world.protocol",
    "accumulate": "samestep.parallel.gradients.replicate",
    "batch_dim": "samestep.autopilot.split.call_arguments",
    "join": "samestep.ranks.world.join",
    "load": "samestep.training.checkpoint.scripts",
    "load_weights": "samestep.training.checkpoint.scripts",
    "replicate": "samestep.parallel.gradients.replicate",
    "save": "samestep.training.checkpoint.scripts",
    "shard": "samestep.training.data.shard",
    "spawn": "samestep.launch.local.spawn",
    "split": "samestep.autopilot.split.call_arguments",  # deprecated, hence not in __all__
    "timed": "samestep.ranks.world.timed_region",
    "workers": "samestep.autopilot.once_script",
}
_RENAMED = {"Pending": "Work", "load_state": "load_weights"}

__all__ = [
    "Error",
    "Exact",
    "LogicalShard",
    "Place",
    "Position",
    "Replicas",
    "ShardedLoader",
    "TimedRegion",
    "UnpaddedSampler",
    "Work",
    "World",
    "accumulate",
    "batch_dim",
    "errors",
    "join",
    "load",
    "load_weights",
    "replicate",
    "save",
    "shard",
    "spawn",
    "timed",
    "workers",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name == "errors":
        return import_module("samestep.errors")
    if name in _RENAMED:
        from samestep.base.renamed import warn_renamed

        warn_renamed(f"samestep.{name}", f"samestep.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
