"""The expected report on each script of this folder on two workers."""

from dataclasses import dataclass
from pathlib import Path

MARK = "# <- fault"
"""Ends the line that the report of a script names."""


@dataclass(frozen=True)
class Script:
    """A training script that hangs or crashes on two workers, and trains on one.

    Attributes:
        name: the file in this folder.
        kind: what happens: "hang", "out of step" (a rank has ended), "signal", "error", "exit" or "refused".
        ranks: the ranks at fault; both where their calls do not match, none where either is reported.
        collective: the collective, or message, in which a rank waits or waited; empty where none does.
        text: a part of the line that is reported; by default the mark.
        at: the rank that is at this line, where it is not the first at fault.
        code: exit code of ``samestep run``.
        cause: the cause that ``samestep verify`` names; empty where it cannot run the script.
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    collective: str
    code: int
    cause: str
    text: str = MARK
    at: int | None = None

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name

    @property
    def line(self) -> int:
        """The number of the line that is reported."""
        lines = self.path.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if self.text in line)

    @property
    def rank_at_line(self) -> int | None:
        """The rank that is at this line; None for any."""
        return next(iter(self.ranks), None) if self.at is None else self.at


BOTH = (0, 1)
_BACKWARD = "loss.backward()"
SCRIPTS = [
    Script("early_break.py", "out of step", (1,), "all_reduce", 1, "steps-differ", _BACKWARD, at=0),
    Script("early_break_before_metric.py", "signal", (1,), "all_reduce", 134, "steps-differ"),
    Script("uneven_batches.py", "out of step", (1,), "all_reduce", 1, "steps-differ", _BACKWARD, at=0),
    Script("exits_0.py", "out of step", (1,), "all_reduce", 1, "hang"),
    Script("barrier_on_rank_0.py", "out of step", (1,), "barrier", 1, "hang", "dist.barrier()", at=0),
    Script("recv_without_send.py", "out of step", (1,), "recv", 1, "hang", "dist.recv(", at=0),
    Script("shapes_differ.py", "hang", BOTH, "all_reduce", 1, "hang", at=1),
    Script("metric_on_rank_0.py", "hang", BOTH, "all_reduce", 1, "hang"),
    Script("order_differs.py", "hang", BOTH, "all_reduce", 1, "hang"),
    Script("roots_differ.py", "hang", BOTH, "broadcast", 1, "hang"),
    Script("receives_crossed.py", "hang", BOTH, "recv", 1, "hang"),
    Script("evaluation_on_rank_0.py", "hang", BOTH, "broadcast", 1, "hang"),
    Script("loader_blocks.py", "hang", (1,), "all_reduce", 1, "hang"),
    Script("deadlocked_threads.py", "hang", (1,), "all_reduce", 1, "hang"),
    Script("stopped.py", "hang", (1,), "all_reduce", 1, "hang"),
    Script("dtypes_differ.py", "signal", BOTH, "all_reduce", 134, "crash"),
    Script("killed.py", "signal", (1,), "all_reduce", 137, "crash"),
    Script("segfault.py", "signal", (1,), "all_reduce", 139, "crash"),
    Script("aborts.py", "signal", (1,), "all_reduce", 134, "crash"),
    Script("exits_3.py", "exit", (1,), "", 3, "crash"),
    Script("unused_parameters.py", "error", (1,), "", 1, "crash"),
    Script("forward_raises.py", "error", (1,), "", 1, "crash"),
    Script("loader_raises.py", "error", (1,), "", 1, "crash"),
    Script("checkpoint_on_rank_0.py", "error", (0,), "", 1, "crash"),
    Script("rank_0_twice.py", "refused", (1,), "", 2, "refused"),
    Script("world_size_wrong.py", "refused", (), "", 2, "refused"),
]
