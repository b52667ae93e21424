"""Runs ranks of a script in fresh interpreters, each with a hash seed of its own, as `torchrun` starts them.

The order of a set of texts, and the hash of a text, depend on that seed, which forked ranks have in common.
"""

import os
import pickle
import sys
from pathlib import Path

import cloudpickle

from samestep.base import env
from samestep.launch.job import Program
from samestep.launch.local.child import Entry, Report, ReportPipe, Start, become


def in_fresh_interpreters(entry: Entry, folder: Path) -> Entry:
    """Return an entry that replaces the worker by a fresh interpreter, which runs `entry`.

    Args:
        entry: what a worker runs; its end is known by the exit code and by what it has recorded.
        folder: for the files that tell a new interpreter what to run.
    """

    def run(start: Start, pipe: ReportPipe) -> Report:
        del pipe  # which the new interpreter does not have
        path = folder / f"entry-{start.place.rank}"
        path.write_bytes(cloudpickle.dumps((entry, start)))
        env.export({"PYTHONHASHSEED": str(start.place.rank + 1)})
        return become(Program(target=sys.executable, kind="executable", args=("-m", __name__, str(path))))

    return run


def main() -> None:
    """Run the entry that a file holds, and exit with its exit code."""
    entry, start = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - of the worker that became this process
    report = entry(start, ReportPipe.of(os.open(os.devnull, os.O_WRONLY)))
    os._exit(report.ending.exit_code & 0xFF)


if __name__ == "__main__":
    main()
