"""A program for kill tests: a training that also records the samples of each step.

    samestep run -n N recorded_training.py RUN_FOLDER STEPS [train ARGUMENTS]

Begins the run in RUN_FOLDER, or goes on with it. After STEPS steps of its own it waits for its end, to get no
further on a fast machine than on a slow one; 0 is no end. Each rank appends one line per step of its own to
``RUN_FOLDER/ids-SESSION-RANK.jsonl``, before the step is taken.
"""

import json
import sys
import threading
from pathlib import Path

from samestep.training.data.loader import ImageLoader


def recording(folder: Path, session: int, rank: int, steps: int):
    """Return `ImageLoader.epoch` that also records its batches, and waits after `steps` of them."""
    plain, taken = ImageLoader.epoch, 0
    path = folder / f"ids-{session}-{rank}.jsonl"
    path.write_text("")  # a start that was killed before it was noted has left its own

    def epoch(self, position=None):
        nonlocal taken
        for batch in plain(self, position):
            if self._options.shuffle:  # the training set
                if steps and taken == steps:
                    threading.Event().wait()
                taken += 1
                row = {"epoch": position.epoch, "after": batch.after.samples, "ids": batch.ids.tolist()}
                with path.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
            yield batch

    return epoch


def main(folder: Path, steps: int, arguments: list[str]) -> None:
    from samestep.base import env
    from samestep.cli.main import run_command
    from samestep.launchers.detect import detect

    began = (folder / "config.toml").exists()
    sessions = folder / "sessions.jsonl"
    session = len(sessions.read_text().splitlines()) if sessions.exists() else 0
    rank = detect(env.snapshot()).place.rank
    folder.mkdir(parents=True, exist_ok=True)
    ImageLoader.epoch = recording(folder, session, rank, steps)
    where = ["--resume", str(folder)] if began else [*arguments, "--out", str(folder)]
    sys.exit(run_command(["train", *where]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
