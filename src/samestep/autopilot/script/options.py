"""The options for serial scripts: how their calls and data are split across ranks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from samestep.base.errors import UsageError
from samestep.base.setting_fields import check, option
from samestep.ranks.collectives.algorithm_choice import ALGORITHMS, check_algorithm

_PANEL = "Serial scripts"

_OF_REPLICATED = ("batch_norm", "split", "load", "random", "algorithm", "all_output")
"""The options that a script has only if every worker runs it."""
Load: TypeAlias = Literal["auto", "shared", "replicated"]


def _choice(about: str, *choices: str) -> Any:
    """Return a field whose default is the first of its choices."""
    return option(default=choices[0], about=about, panel=_PANEL, choices=choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's choices for one run; with the defaults, the results are those of one worker.

    Fields with help are flags of the command line.
    """

    explain: bool = option(
        default=False,
        about="Run the first steps, print what is split, and discard what the script writes.",
        panel=_PANEL,
        names=["--explain"],
    )
    batch_norm: Literal["global", "local"] = _choice(
        "global: batch norm over the whole batch; local: over each worker's shard.", "global", "local"
    )
    split: Literal["call", "loader"] = _choice(
        "call: shard the batch in each call of a model; loader: shard it as it is loaded.", "call", "loader"
    )
    short_calls: Literal["auto", "split"] = _choice(
        "auto: every worker computes calls that take longer split than unsplit; split: they are split.",
        *("auto", "split"),
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
    algorithm: str | None = option(
        default=None,
        about=f"The all-reduce of gradients: {', '.join(ALGORITHMS)}; by size, such as tree,ring:64K; or "
        "auto, the fastest that samestep bench all-reduce --save has measured.",
        panel=_PANEL,
        metavar="NAME",
    )
    check_every: int | None = option(
        default=None,
        about="Compute every K-th split call unsplit too, and compare; 0 disables the check. "
        "Default: ever less often, in about 1 % of the time.",
        panel=_PANEL,
        metavar="K",
    )
    engine: Literal["auto", "once", "replicated"] = option(
        default="auto",
        about="once: one worker runs the script, and the others help; replicated: every worker runs it; "
        "auto: once, unless an option is given that only replicated scripts have.",
        panel=_PANEL,
        choices=("auto", "once", "replicated"),
        hidden=True,
    )
    all_output: bool = option(
        default=False,
        about="Print the output of all workers of a serial script, each line prefixed with the rank.",
        panel="Output",
        names=["--all-output"],
    )
    # a folder for all written files instead of their paths; None to write to their paths
    scratch: Path | None = None
    seed: int | None = None  # the seed of generators that the script does not seed; None draws one

    def __post_init__(self) -> None:
        check(self)
        if self.check_every is not None and self.check_every < 0:
            raise UsageError(
                f"--check-every is {self.check_every}; give a number of calls (0 disables the check)."
            )
        if self.algorithm is not None:
            check_algorithm(self.algorithm)

    @property
    def are_once(self) -> bool:
        """Whether one worker runs the script, and the others help it."""
        chosen = (getattr(self, name) != getattr(DEFAULTS, name) for name in _OF_REPLICATED)
        return self.engine == "once" or (self.engine == "auto" and not any(chosen))

    @property
    def are_serial(self) -> bool:
        """Whether split calls give the results of one worker."""
        return self.batch_norm == "global" and self.random == "global"


DEFAULTS = Options()
