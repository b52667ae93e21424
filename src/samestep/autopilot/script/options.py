"""The options for serial scripts: how their calls are split between workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samestep.base.errors import UsageError
from samestep.base.options import check, option

_PANEL = "Serial scripts"


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
    short_calls: Literal["auto", "split"] = _choice(
        "auto: calls that take longer split than unsplit are not split, nor the first ones during a long "
        "check; split: they are, too.",
        *("auto", "split"),
    )
    device: Literal["auto", "cpu"] = _choice(
        "auto: the device that the script names; cpu: the CPU, also for a script that names cuda.",
        *("auto", "cpu"),
    )
    check_every: int | None = option(
        default=None,
        about="Compute every K-th split call unsplit too, and compare; 0 disables the check. "
        "Default: ever less often, in about 1 % of the time.",
        panel=_PANEL,
        metavar="K",
    )
    # a folder for all written files instead of their paths; None to write to their paths
    scratch: Path | None = None
    seed: int | None = None  # the seed of generators that the script does not seed; None leaves them unseeded

    def __post_init__(self) -> None:
        check(self)
        if self.check_every is not None and self.check_every < 0:
            raise UsageError(
                f"--check-every is {self.check_every}; give a number of calls (0 disables the check)."
            )

    @property
    def checks_at_once(self) -> bool:
        """Whether a check is completed at its first call: for equal bits in each run, or for a trial run."""
        return self.explain or self.scratch is not None or self.short_calls == "split"


DEFAULTS = Options()
