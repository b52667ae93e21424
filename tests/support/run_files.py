"""Makes rows of a run's files, and reads these files."""

import json
from pathlib import Path

from samestep.training.output.run_folder import Result

CONFIG = {"recipe": "digits", "lr": 0.1, "milestones": (1.0, 2.0)}

RESULT = Result(
    accuracy=0.5,
    correct=1,
    total=2,
    loss=0.7,
    epochs=1,
    steps=4,
    seconds=2.0,
    samples_per_second=10.0,
    weights_sha256="ab",
    world_size=2,
    step_s={"data": 0.001},
)


def step_row(step, loss=0.5):
    return {"step": step, "epoch": 1, "samples": 8 * step, "loss": loss, "lr": 0.1, "forward": 0.002}


def evaluation_row(step, accuracy=0.75):
    return {"step": step, "seconds": 1.5, "train_loss": None, "accuracy": accuracy, "metrics": {"AUROC": 0.9}}


def json_lines(path: Path) -> list[dict]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def json_lines_so_far(path: Path) -> list[dict]:
    """Return the objects of the complete lines of such a file, which can be growing or missing."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1:] == "\n"]
    except FileNotFoundError:
        return []
