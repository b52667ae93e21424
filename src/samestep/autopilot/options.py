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
    """The choices of one run; the defaults are those whose result is the serial one.

    Args:
        explain: whether to only report what would be split and written, and end after a few steps.
        batch_norm: whether batch norm within a shared call is over the whole batch, or over each slice.
        load: whether each worker loads its share of a batch, or all of it; ``auto`` shares where that gives
            the same batch, and sooner.
        split: whether the calls of models are cut, or the batches as they are loaded.
        random: whether a shared call draws for the whole batch, or each worker for its slice.
        all_output: whether every worker prints, and not the first alone.
        algorithm: which all-reduce carries gradients, as `by_algorithm` takes it; None for the way that
            suits the workers.
        device: ``cpu`` for a script that names another one, whatever it names.
        scratch: where all that the copies write goes instead of their files; None for a run that is meant.
        seed: of what nobody seeds; None draws one.
        check_every: split calls between two that are computed unsplit too and compared; 0 for never, None for
            exponentially rarer ones.
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
        """Whether a shared call gives what it gives on one worker."""
        return self.batch_norm == "global" and self.random == "global"


DEFAULTS = Options()
