"""The examples run by the commands in their first lines, and the twins print the same losses."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from support import commands
from support.forked_commands import samestep
from support.script_runner import difference
from support.tiers import long_param

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Return what serial.py prints on one worker, an interpreter of its own, and the weights it saves."""
    folder = tmp_path_factory.mktemp("serial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = commands.samestep("run", "-n", 1, EXAMPLES / "serial.py")
    assert ended.code == 0, ended.err
    return ended.out, torch.load(folder / "model.pt")


@pytest.mark.parametrize(
    ("workers", "script"), [long_param(1, "joined.py"), (2, "joined.py"), (2, "serial.py")]
)
def test_twin_and_serial_script_print_the_serial_losses_and_save_the_serial_weights(
    workers, script, serial, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    printed, weights = serial

    ended = samestep("run", "-n", workers, EXAMPLES / script)

    assert ended.code == 0, ended.err
    assert len(re.findall(r"loss \d+\.\d{9},", printed)) == 3
    assert ended.out == printed
    joined = torch.load(tmp_path / "model.pt")
    assert list(joined) == list(weights)
    for name, expected in weights.items():
        torch.testing.assert_close(joined[name], expected, rtol=1e-10, atol=1e-10)


def test_the_documentation_shows_what_the_examples_print(serial):
    printed, _ = serial

    for page in ("README.md", "docs/start.md"):
        shown = re.findall(r"^    (epoch \d: loss .*)$", (EXAMPLES.parent / page).read_text(), re.MULTILINE)
        assert shown == printed.splitlines() * 2


@pytest.mark.parametrize(("workers", "total"), [long_param(1, 0), (2, 1)])
def test_a_script_with_its_own_torch_distributed_runs_unchanged(workers, total):
    ended = samestep("run", "-n", workers, EXAMPLES / "torch_distributed.py")

    assert ended.code == 0, ended.err
    assert f"add up to {total}\n" in ended.out
    assert ended.out.endswith(f"all {workers} hold the same weights: True\n")


@pytest.mark.parametrize(("workers", "total"), [long_param(1, 1), (3, 6)])
def test_messages_arrive_along_the_line_and_around_the_ring(workers, total):
    ended = samestep("run", "-n", workers, EXAMPLES / "message_passing.py")

    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        f"{workers} ranks: down the line {total}, round the ring {total}",
        "all of them know it: True",
    ]


@pytest.mark.parametrize(
    ("script", "words", "digits"),
    [
        # Rounding grows with the steps, and faster where batch norm or a second network follows.
        long_param("image_classification.py", ["--samples", 192], 3),
        long_param("gpt.py", [], 3),
        long_param("gan.py", [], 3),
        ("lbfgs.py", [], 6),
        long_param("slurm_project/train.py", [], 4),
    ],
)
def test_an_example_gives_its_serial_output_on_two_workers(script, words, digits, tmp_path, monkeypatch):
    printed = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        monkeypatch.chdir(folder)
        # With this flag checks are completed at once, however busy the machine is.
        ended = samestep("run", "-n", workers, "--short-calls", "split", EXAMPLES / script, *words)
        assert ended.code == 0, ended.err
        printed.append(ended.out)

    assert printed[0].count("\n") >= 3
    assert difference(*printed, digits=digits) is None, printed
    assert re.search(r"\d calls? split$", ended.err, re.MULTILINE), ended.err


def test_the_list_of_examples_is_complete():
    listed = set(re.findall(r"`([\w/]+\.(?:py|yml)|\w+/)`", (EXAMPLES / "README.md").read_text()))
    there = {path.name for path in EXAMPLES.glob("*.py")} | {
        "slurm_project/",
        "workflows/verify.yml",
        "tutorial/",
    }

    assert listed == there


def test_the_job_of_the_slurm_project_is_a_script_of_bash():
    subprocess.run(["bash", "-n", EXAMPLES / "slurm_project" / "job.sh"], check=True)
