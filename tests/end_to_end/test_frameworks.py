"""Scripts of training libraries: on one device they give the serial output, on several they run natively."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from support.commands import environment
from support.hosted import difference
from support.systems import missing

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "tests/gallery_frameworks"
PYTHON = ROOT / ".venv-frameworks/bin/python"
ONE_DEVICE = (
    "accelerate_loop",
    "ignite_loop",
    "keras_on_torch",
    "lightning_fabric",
    "lightning_trainer",
    "transformers_trainer",
)
EXAMPLES = [ROOT / "examples" / f"{name}.py" for name in ("hf_trainer", "lightning_module", "keras_fit")]
TIMES = (re.compile(r"_(runtime|per_second)'"),)
"""Lines of which parts are times."""


@pytest.fixture(scope="module", autouse=True)
def frameworks():
    if not PYTHON.exists():
        missing("frameworks", f"{PYTHON.parents[1]} is missing; `make test` creates it")


def run(folder, *command):
    """Run a command of the libraries' interpreter in a folder; return its exit code and what it prints."""
    variables = environment(PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    folder.mkdir()
    started = subprocess.Popen(
        [PYTHON, *map(str, command)],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=110)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
    return started.returncode, out, err


def results(text):
    return "".join(line for line in text.splitlines(keepends=True) if not TIMES[0].search(line))


@pytest.mark.parametrize(
    "script", [*(GALLERY / f"{name}.py" for name in ONE_DEVICE), *EXAMPLES], ids=lambda script: script.stem
)
def test_a_script_of_a_library_on_one_device_gives_the_serial_output(tmp_path, script):
    alone, serial, trace = run(tmp_path / "serial", script)
    assert alone == 0, trace

    code, out, err = run(tmp_path / "two", "-m", "samestep", "run", "-n", 2, script)

    assert code == 0, err
    assert difference(results(serial), results(out), digits=5) is None
    assert " split" in err


def test_a_script_that_asks_for_several_devices_is_started_natively(tmp_path):
    script = GALLERY / "lightning_trainer.py"

    code, out, err = run(tmp_path / "two", "-m", "samestep", "run", "-n", 2, script, "--devices", 2)

    assert code == 0, err
    assert out.count("step 0 ") == 2  # each rank's own batch
    assert "step 8 " not in out  # half of the steps of one device
    assert "joins its peers itself" in err


def test_a_script_whose_library_starts_ranks_after_all_is_refused_in_one_line(tmp_path):
    script = tmp_path / "train.py"
    text = (GALLERY / "lightning_trainer.py").read_text()
    script.write_text(text.replace("devices=DEVICES", "devices=int('2')"))

    code, _, err = run(tmp_path / "two", "-m", "samestep", "run", "-n", 2, script)

    assert code == 2
    assert "Traceback" not in err
    assert "--mode native" in err


@pytest.mark.parametrize(
    "name", ["accelerate_metrics", "fabric_ranks", "lightning_ranks", "transformers_ranks"]
)
def test_verify_does_not_accuse_a_right_script_of_a_library(tmp_path, name):
    options = ("--mode", "native", "--steps", 10, "--json")

    code, out, err = run(tmp_path / "two", "-m", "samestep", "verify", *options, GALLERY / f"{name}.py")

    assert code == 0, err
    assert json.loads(out)["verdict"] == "same", out
