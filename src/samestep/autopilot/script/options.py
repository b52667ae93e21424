"""The options for serial scripts: how their calls and data are split across ranks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

BatchNormOver: TypeAlias = Literal["global", "local"]
Device: TypeAlias = Literal["auto", "cpu"]
Load: TypeAlias = Literal["auto", "shared", "replicated"]
RandomOf: TypeAlias = Literal["global", "per-worker"]
Split: TypeAlias = Literal["call", "loader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's choices for one run; with the defaults, the results are those of one worker.

    Args:
        explain: whether to only report what would be split and written, and end after a few steps.
        batch_norm: whether batch norm within a split call is over the whole batch, or over each slice.
        load: whether each worker loads its share of a batch, or all of it; ``auto`` shards if that gives the
            same batch, and is faster.
        split: whether model calls are split, or the batches of loaders.
        random: whether a split call draws random numbers for the whole batch, or each worker for its slice.
        all_output: whether every worker prints, instead of only the first.
        algorithm: the all-reduce of gradients, as `by_algorithm` takes it; None for the default.
        device: ``cpu`` to run a script that names CUDA devices on the CPU.
        scratch: a folder for all written files instead of their paths; None to write to their paths.
        seed: the seed of generators that the script does not seed; None draws one.
        check_every: the number of split calls between sample checks; 0 for none, None for exponentially rarer
            ones.
    """

    explain: bool = False
    batch_norm: BatchNormOver = "global"
    load: Load = "auto"
    split: Split = "call"
    random: RandomOf = "global"
    device: Device = "auto"
    algorithm: str | None = None
    all_output: bool = False
    scratch: Path | None = None
    seed: int | None = None
    check_every: int | None = None

    @property
    def are_serial(self) -> bool:
        """Whether split calls give the results of one worker."""
        return self.batch_norm == "global" and self.random == "global"


DEFAULTS = Options()
