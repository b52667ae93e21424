"""The options for serial scripts: how their calls and data are split across ranks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from samestep.base.setting_fields import check, option

Load: TypeAlias = Literal["auto", "shared", "replicated"]


def _choice(about: str, *choices: str) -> Any:
    """Return a field whose default is the first of its choices."""
    return option(default=choices[0], about=about, panel="Serial scripts", choices=choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's choices for one run; with the defaults, the results are those of one worker.

    Args:
        explain: whether to only report what would be split and written, and end after a few steps.
        all_output: whether every worker prints, instead of only the first.
        algorithm: the all-reduce of gradients, as `by_algorithm` takes it; None for the default.
        scratch: a folder for all written files instead of their paths; None to write to their paths.
        seed: the seed of generators that the script does not seed; None draws one.
        check_every: the number of split calls between sample checks; 0 for none, None for exponentially rarer
            ones.
    """

    explain: bool = False
    batch_norm: Literal["global", "local"] = _choice(
        "global: batch norm over the whole batch; local: over each worker's shard.", "global", "local"
    )
    split: Literal["call", "loader"] = _choice(
        "call: shard the batch in each call of a model; loader: shard it as it is loaded.", "call", "loader"
    )
    load: Literal["auto", "shared", "replicated"] = _choice(
        "shared: each worker loads its shard of a batch; replicated: the whole batch; auto: shared where "
        "that gives the same batch and is faster.",
        *("auto", "shared", "replicated"),
    )
    random: Literal["global", "per-worker"] = _choice(
        "global: the same random numbers as on one worker; per-worker: separate ones on each.",
        *("global", "per-worker"),
    )
    device: Literal["auto", "cpu"] = _choice(
        "auto: the device that the script names; cpu: the CPU, also for a script that names cuda.",
        *("auto", "cpu"),
    )
    algorithm: str | None = None
    all_output: bool = False
    scratch: Path | None = None
    seed: int | None = None
    check_every: int | None = None

    def __post_init__(self) -> None:
        check(self)

    @property
    def are_serial(self) -> bool:
        """Whether split calls give the results of one worker."""
        return self.batch_norm == "global" and self.random == "global"


DEFAULTS = Options()
