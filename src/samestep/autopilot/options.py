"""What a user may say about how a serial script is shared out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of one run; the defaults are those whose result is the serial one.

    Args:
        explain: only say what would be shared out and written, and end after a few steps.
    """

    explain: bool = False


DEFAULTS = Options()
