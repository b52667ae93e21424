"""Lists the scripts of the gallery, the files they write, and the lines that they read."""

from dataclasses import dataclass
from pathlib import Path

_LINES = """\
first
steps 5
lr 0.02
steps 4
data 3
0.1 0.2 0.3 0.4 0.5 0.6
0.3 0.1 0.3 0.4 0.5 0.6
-0.2 0.1 0.9 -0.4 0.5 0.7
steps 3
debug
p done
c
save steered.pt
steps 2
"""


@dataclass(frozen=True)
class Script:
    """A serial training script, run in an empty folder.

    Attributes:
        name: the file in this folder.
        files: patterns of the files after the run, each of one file, in the order of their names.
        reads: the standard input.
        has_own_process: whether it has to be run in a process of its own.
    """

    name: str
    files: tuple[str, ...] = ()
    reads: str = ""
    has_own_process: bool = False

    @property
    def path(self) -> Path:
        """The path of the script."""
        return Path(__file__).parent / self.name


SCRIPTS = [
    Script("named_runs.py", ("runs/*/*-*-*-*-*.pt",) * 3 + ("runs/*_*/log.csv",)),
    Script("caches_in_c.py", ("data.db", "losses.db", "masks.zip", "noise.dat", "weights.txt")),
    Script("fed_by_a_socket.py"),
    Script("models_in_threads.py"),
    Script("forks.py", ("child2.pt", "child4.pt")),
    Script("budget.py", ("steps.txt", "summary.json")),
    Script("loader_random.py", has_own_process=True),
    Script("signals.py", ("asked2.pt", "asked6.pt")),
    Script("steered.py", ("steered.pt",), reads=_LINES, has_own_process=True),
    Script(
        "tracked.py",
        ("boards/events.out.tfevents.*", "track/run-*/history.jsonl"),
        has_own_process=True,
    ),
    Script("housekeeping.py", ("ended.txt", "train.log", "train.log.1", "train.log.2"), has_own_process=True),
    Script("replaces_itself.py", ("first.pt", "other.py", "process.txt"), has_own_process=True),
    Script("waits_for_children.py", has_own_process=True),
    Script("spawns.py", has_own_process=True),
]
