"""What a user may say about how a serial script is shared out."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

BatchNormOver: TypeAlias = Literal["global", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of one run; the defaults are those whose result is the serial one.

    Args:
        explain: only say what would be shared out and written, and end after a few steps.
        batch_norm: whether batch norm within a shared call is over the whole batch, or over each slice.
    """

    explain: bool = False
    batch_norm: BatchNormOver = "global"

    @property
    def are_serial(self) -> bool:
        """Whether a shared call gives what it gives on one worker."""
        return self.batch_norm == "global"


DEFAULTS = Options()
