"""Kills a worker in the middle of a training, and compares the result with that of an undisturbed one."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from samestep.base.errors import WorkerFailed
from samestep.base.folders import temporary_directory
from samestep.base.units import counted, seconds_text
from samestep_lab.experiments.commands import COMMAND, json_of, parsed
from samestep_lab.experiments.experiment import Outcome, Setup, Table

EPOCHS, BATCH, CHECKPOINT_STEPS = 6, 64, 10
TIMEOUT_S = 120.0


def run(setup: Setup, *, epochs: int = EPOCHS, samples: int = 1280) -> Outcome:
    """Run the experiment."""
    training = [
        *("train", setup.data, "-n", str(setup.workers), "--max-restarts", "1", "--subset", str(samples)),
        *("--epochs", str(epochs), "--batch-size", str(BATCH), "--checkpoint-steps", str(CHECKPOINT_STEPS)),
        *(() if setup.data_dir is None else ("--data-dir", str(setup.data_dir))),
    ]
    with tempfile.TemporaryDirectory(dir=temporary_directory()) as name:
        folder = Path(name)
        began = time.perf_counter()
        undisturbed = json_of([*training, "--out", str(folder / "undisturbed")])
        between = time.perf_counter()
        killed = _killed([*training, "--out", str(folder / "killed")], folder / "killed")
        seconds = (between - began, time.perf_counter() - between)
        lines = (folder / "killed" / "sessions.jsonl").read_text().splitlines()
    sessions = [json.loads(line)["step"] for line in lines]
    is_equal = undisturbed["weights_sha256"] == killed["weights_sha256"]
    rows = [
        (
            name,
            str(result["steps"]),
            f"{result['accuracy']:.2%}",
            result["weights_sha256"][:12],
            seconds_text(taken),
        )
        for name, result, taken in zip(
            ("undisturbed", "one worker killed"), (undisturbed, killed), seconds, strict=True
        )
    ]
    return Outcome(
        tables=[Table(head=("training", "steps", "accuracy", "weights", "time"), rows=rows)],
        measured=(
            f"The workers were restarted {counted(len(sessions) - 1, 'time')}, from step "
            f"{sessions[-1]}; the weights at the end are {'equal' if is_equal else 'not equal'}, bit by bit."
        ),
        values={"equal_weights": is_equal, "sessions": sessions, "seconds": seconds},
    )


def _killed(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a training whose last worker is killed once there is a checkpoint; return its result."""
    command = [*COMMAND, *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not list(folder.glob("checkpoints/step-*")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise WorkerFailed("the training ended, or took long, before a checkpoint.", exit_code=1)
                time.sleep(0.005)
            os.kill(max(child.pid for child in psutil.Process(process.pid).children()), signal.SIGKILL)
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return parsed(arguments, process.returncode, out, err)
