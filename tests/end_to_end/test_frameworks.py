"""Scripts of training libraries: on one device they give the serial output, on several they run natively."""

import json
import re
from pathlib import Path

import pytest

from support.kept_interpreter import KeptInterpreter
from support.script_runner import difference
from support.systems import missing
from support.tiers import mostly_long, stem

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "tests/gallery_frameworks"
PYTHON = ROOT / ".venv-frameworks/bin/python"
STRICT = ROOT / "tests/support/strict_script.py"
ONE_DEVICE = (
    "accelerate_loop",
    "datasets_and_hdf5",
    "ignite_loop",
    "keras_on_torch",
    "lightning_fabric",
    "lightning_trainer",
    "transformers_trainer",
)
EXAMPLES = [ROOT / "examples" / f"{name}.py" for name in ("hf_trainer", "lightning_module", "keras_fit")]
TIMES = (re.compile(r"_(runtime|per_second)'"),)
"""Lines of which parts are times."""


@pytest.fixture(scope="module")
def interpreter():
    """The libraries' interpreter."""
    if not PYTHON.exists():
        missing("frameworks", f"{PYTHON.parents[1]} is missing; `make test` creates it")
    kept = KeptInterpreter(PYTHON, ROOT / "src", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    yield kept
    kept.close()


@pytest.fixture
def run(interpreter, tmp_path):
    """A function that runs a script alone, or a command of samestep, in a new folder."""

    def run(name, *words):
        folder = tmp_path / name
        folder.mkdir()
        return interpreter.run(folder, *words)

    return run


def results(text):
    return "".join(line for line in text.splitlines(keepends=True) if not TIMES[0].search(line))


SCRIPTS = [*(GALLERY / f"{name}.py" for name in ONE_DEVICE), *EXAMPLES]


@pytest.mark.parametrize(
    "script", mostly_long(SCRIPTS, ("keras_on_torch", "lightning_trainer", "transformers_trainer"), stem)
)
def test_a_script_of_a_library_on_one_device_gives_the_serial_output(run, script):
    serial = run("serial", script)
    assert serial.code == 0, serial.err

    # With this flag checks are completed at once, however busy the machine is. An example runs on a device
    # as strict as CUDA.
    options = ["--short-calls", "split", *([STRICT] if script in EXAMPLES else [])]
    two = run("two", "run", "-n", 2, *options, script)

    assert two.code == 0, two.err
    assert difference(results(serial.out), results(two.out), digits=5) is None
    assert re.search(r"\d calls? split$", two.err, re.MULTILINE), two.err


def test_a_script_that_asks_for_several_devices_is_started_natively(run):
    script = GALLERY / "lightning_trainer.py"

    two = run("two", "run", "-n", 2, script, "--devices", 2)

    assert two.code == 0, two.err
    assert two.out.count("step 0 ") == 2  # each rank's own batch
    assert "step 8 " not in two.out  # half of the steps of one device
    assert "joins its peers itself" in two.err


@pytest.mark.long
def test_a_library_that_starts_ranks_unexpectedly_does_so_as_without_samestep(run, tmp_path):
    script = tmp_path / "train.py"
    text = (GALLERY / "lightning_trainer.py").read_text()
    script.write_text(text.replace("devices=DEVICES", "devices=int('2')"))

    plain, two = run("plain", script), run("two", "run", "-n", 2, script)

    assert (plain.code, two.code) == (0, 0), two.err
    # A progress bar that both ranks write leaves empty lines between theirs.
    lines = [sorted(filter(None, results(run.out).splitlines())) for run in (two, plain)]
    assert lines[0] == lines[1]


NATIVE = ("accelerate_metrics", "fabric_ranks", "lightning_ranks", "transformers_ranks")


@pytest.mark.parametrize("name", mostly_long(NATIVE, ("accelerate_metrics",)))
def test_verify_finds_no_fault_in_a_correct_script_of_a_library(run, name):
    options = ("--mode", "native", "--steps", 10, "--json")

    ended = run("two", "verify", *options, GALLERY / f"{name}.py")

    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["verdict"] == "same", ended.out


def test_verify_redirects_files_of_libraries_in_c(run, tmp_path):
    script = GALLERY / "datasets_and_hdf5.py"

    ended = run("two", "verify", "--json", script)

    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["verdict"] == "same", ended.out
    assert [*(tmp_path / "two").iterdir()] == []
