"""The tutorial's scripts on 1, 2 and 3 workers take the steps of the serial script."""

import ast
import gzip
import json
import lzma
import os
import re
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import commands
from support.forked_commands import samestep
from support.tiers import long_param

TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial"
JOBS = sorted((TUTORIAL / "jobs").glob("*.sh"))
SMALL = ("--synthetic", "--subset", 97, "--batch-size", 24, "--norm", "group", "--lr", "0.005")
SMALL_RESNET = ("--synthetic", "--subset", 25, "--batch-size", 12, "--width", 4, "--norm", "group")
COMPARES_BUFFERS = """
import sys
sys.path.insert(0, {folder!r})
import torch.distributed as dist
import {script} as script

owner = {owner}
evaluate = owner.evaluate

def compared(first, *others):
    right = evaluate(first, *others)
    model = getattr(first, "model", first)
    sums = [None] * dist.get_world_size()
    dist.all_gather_object(sums, [buffer.sum().item() for buffer in model.buffers()])
    if dist.get_rank() == 0:
        assert sums[0]
        print("ranks that have other buffers:", sum(one != sums[0] for one in sums), flush=True)
    return right

owner.evaluate = compared
{start}
"""


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(workers, script, *arguments):
    """Run a script of the tutorial on some workers, and return its epochs and all that it printed."""
    ended = samestep("run", "-n", workers, "--mode", "native", TUTORIAL / script, *arguments)
    assert ended.code == 0, ended.err
    return epochs(ended.out), ended


def epochs(out):
    """Return the loss, the samples classified right and the test samples of each epoch."""
    return [
        (float(loss or 0), int(right), int(count))
        for loss, right, count in re.findall(r"(?:loss ([\d.]+), )?right (\d+)/(\d+)", out)
    ]


def assert_same_steps(found, expected, *, loss=2e-4):
    assert len(found) == len(expected)
    for (a, right, count), (b, expected_right, expected_count) in zip(found, expected, strict=True):
        assert a == pytest.approx(b, rel=loss)
        assert abs(right - expected_right) <= 1  # two scores that are equal up to rounding
        assert count == expected_count


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Return the epochs of serial.py and the weights that it saves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("serial"))
        found, _ = run(1, "serial.py", *SMALL)
        return found, torch.load("mnist.pt")


@pytest.mark.parametrize("workers", [long_param(1), 2, long_param(3)])
def test_ddp_takes_the_steps_of_the_serial_script_and_saves_its_weights(workers, serial):
    expected, weights = serial

    found, _ = run(workers, "ddp.py", *SMALL)

    assert len(found) == 2
    assert found[1][0] < found[0][0]
    assert {count for _, _, count in found} == {97}  # which neither 2 nor 3 divides: no sample counts twice
    assert_same_steps(found, expected)
    saved = torch.load("mnist.pt")
    assert list(saved) == list(weights)
    for name, values in weights.items():
        torch.testing.assert_close(saved[name], values, rtol=1e-3, atol=1e-4)


def test_spawned_workers_take_the_steps_of_the_serial_script(serial):
    command = [sys.executable, TUTORIAL / "spawn.py", "-n", "1", "-g", "2", *map(str, SMALL)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=commands.environment(OMP_NUM_THREADS="1")
    )

    assert done.returncode == 0, done.stderr
    assert_same_steps(epochs(done.stdout), serial[0])


@pytest.mark.long
def test_mixed_precision_is_near_the_serial_script_but_not_equal(serial):
    found, _ = run(2, "ddp_mixed_precision.py", *SMALL)

    assert found != serial[0]
    for (loss, _, count), (expected, _, _) in zip(found, serial[0], strict=True):
        assert loss == pytest.approx(expected, rel=0.02)
        assert count == 97


def test_the_twin_in_samestep_takes_the_same_steps_on_any_number_of_workers():
    batch_norm = [word if word != "group" else "batch" for word in SMALL]

    one, _ = run(1, "with_samestep.py", *batch_norm)
    three, _ = run(3, "with_samestep.py", *batch_norm)

    assert len(one) == 2
    assert_same_steps(three, one, loss=1e-3)


@pytest.mark.parametrize("workers", [long_param(1), long_param(2), 3])
def test_messages_arrive(workers):
    _, ended = run(workers, "message_passing.py", "--count", 100)

    *pairs, ring = ended.out.splitlines()
    assert [int(re.search(r"sum (\d+)", line)[1]) for line in pairs] == [200] * (workers - 1)
    assert ring == f"{workers} ranks, around the ring: sum {workers * (workers + 1) // 2}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("alone"))
        return run(1, "trainer_from_primitives.py", *SMALL_RESNET)[0]


@pytest.mark.parametrize("workers", [2, long_param(3)])
def test_the_trainer_takes_the_same_steps_counts_all_samples_and_times_each_phase(workers, alone):
    found, ended = run(workers, "trainer_from_primitives.py", *SMALL_RESNET)

    assert_same_steps(found, alone, loss=1e-3)
    assert [int(n) for n in re.findall(r"(\d+) samples", ended.out)] == [0, 24, 48]
    phases = re.findall(r"(forward|backward|communication|optimizer) ([\d.]+) s", ended.err)
    assert len(phases) == 8
    assert min(float(seconds) for _, seconds in phases) > 0


@pytest.mark.parametrize(
    ("script", "owner", "start", "small", "evaluations"),
    [
        (
            *("trainer_from_primitives", "script.Trainer"),
            *("script.main(script.parsed(script.trainer_parser()))", SMALL_RESNET, 3),
        ),
        (
            *("ddp", "script"),
            "script.main(script.parsed(script.training_parser('', batch_size=9, lr=1)), script.find_place())",
            *(SMALL, 2),
        ),
    ],
    ids=["primitives", "ddp"],
)
def test_every_rank_evaluates_with_the_batch_norm_statistics_of_rank_0(
    script, owner, start, small, evaluations, tmp_path
):
    compares = COMPARES_BUFFERS.format(folder=str(TUTORIAL), script=script, owner=owner, start=start)
    (tmp_path / "compared.py").write_text(compares)
    words = [word if word != "group" else "batch" for word in small]

    ended = samestep("run", "-n", 2, "--mode", "native", "compared.py", *words)

    assert ended.code == 0, ended.err
    assert re.findall(r"ranks that have other buffers: (\d+)", ended.out) == ["0"] * evaluations


def test_wandb_is_called_on_rank_0_only_with_the_samples_of_all_ranks_as_x_axis(tmp_path):
    (tmp_path / "wandb.py").write_text(
        "import json\n"
        "def init(project, config): return Run(project)\n"
        "class Run:\n"
        "    def __init__(self, project): self.project = project\n"
        "    def log(self, figures, step):\n"
        "        with open('logged', 'a') as f: f.write(json.dumps([self.project, step, figures]) + '\\n')\n"
    )
    ended = commands.samestep(
        *("run", "-n", 2, "--mode", "native", TUTORIAL / "trainer_from_primitives.py", *SMALL_RESNET),
        *("--epochs", 1, "--wandb", "lab"),
        PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    )

    assert ended.code == 0, ended.err

    logged = [json.loads(line) for line in (tmp_path / "logged").read_text().splitlines()]
    assert [(project, step) for project, step, _ in logged] == [("lab", 0), ("lab", 24)]
    phases = {"forward", "backward", "communication", "optimizer"}
    assert [set(figures) - phases for _, _, figures in logged] == [{"accuracy"}, {"accuracy", "loss"}]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("serial.py", ()),
        ("serial.py", ("--data", "nowhere")),
        ("serial.py", ("--synthetic", "--subset", 10)),
        ("ddp.py", ("--synthetic", "--batch-size", 7)),
        ("spawn.py", ("--synthetic", "-n", 2, "-nr", 2)),
    ],
)
def test_incompatible_options_end_with_one_line_and_code_2(script, arguments):
    ended = samestep("run", "-n", 2, "--mode", "native", TUTORIAL / script, *arguments)

    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    assert "error: " in ended.err


def test_data_files_are_read_as_they_are_or_compressed(tmp_path):
    reader = runpy.run_path(str(TUTORIAL / "data.py"))
    for images, labels in reader["MNIST_FILES"].values():
        pixels = bytes(range(256)) * 7  # two images are 1568 bytes
        content = struct.pack(">4I", 2051, 2, 28, 28) + pixels[:1568]
        (tmp_path / f"{images}.gz").write_bytes(gzip.compress(content))
        (tmp_path / labels).write_bytes(struct.pack(">2I", 2049, 2) + bytes([3, 9]))
    for names in reader["CIFAR10_FILES"].values():
        for number, name in enumerate(names):
            record = bytes([number]) + bytes([255]) * 1024 + bytes([0]) * 2048
            (tmp_path / f"{name}.xz").write_bytes(lzma.compress(record))

    images, labels = reader["mnist"](tmp_path, "train").tensors
    assert images.shape == (2, 1, 28, 28)
    assert labels.tolist() == [3, 9]
    assert images[0, 0, 0, 255 % 28].item() == pytest.approx((3 / 255 - 0.1307) / 0.3081, rel=1e-5)
    images, labels = reader["cifar10"](tmp_path, "train").tensors
    assert images.shape == (5, 3, 32, 32)
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert images[0, 0].unique().tolist() == pytest.approx([(1 - 0.4914) / 0.2470], rel=1e-5)
    assert images[0, 2].unique().tolist() == pytest.approx([-0.4465 / 0.2616], rel=1e-5)


@pytest.mark.parametrize("script", JOBS, ids=lambda path: path.name)
def test_job_scripts_are_valid_bash_and_purge_modules_before_they_load(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert text.count("module load") == text.count("module purge")
    assert text.find("module purge") <= text.find("module load")


def test_only_the_twin_imports_samestep():
    importing = []
    for path in TUTORIAL.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        names = [a.name for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names]
        importing += [path.name] * ("samestep" in names)

    assert importing == ["with_samestep.py"]
