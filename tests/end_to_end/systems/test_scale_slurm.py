"""Scaling studies under a real Slurm: as steps inside an allocation, and as jobs that are collected."""

import json
import sys

import pytest

from support.commands import finish
from support.tiers import long_param

SCALE = (sys.executable, "-m", "samestep", "scale")
FEW = ("--steps", 3, "--warm-up", 1, "--repeats", 1, "--out", "study")

# Without torch.optim, whose import takes longer than all the rest.
SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
for step in range(40):
    loss = model(torch.randn(12, 16)).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
"""


NATIVE = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
while True:
    model(torch.ones(int(sys.argv[1]), 64)).square().mean().backward()
    model.zero_grad()
"""

# Steps of several sizes in one allocation; each task tells its rank and the GPUs that it was given.
STEPS = """
import os, subprocess
from samestep.scaling.sweep.local_runs import slurm_capacity

held = slurm_capacity(os.environ)
for workers, nodes, launched in ((1, 1, "tasks"), (4, 2, "tasks"), (4, 2, "node"), (8, 2, "tasks")):
    step = held.step(workers, nodes=nodes, largest=8, launched=launched)
    task = f"echo {workers} {launched} $SLURM_PROCID $CUDA_VISIBLE_DEVICES"
    subprocess.run([*step, "--immediate=20", "sh", "-c", task], check=True)
"""


@pytest.fixture
def here(tmp_path):
    """A folder with a serial script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def points(folder, name="points"):
    """Return the points of the study that was written: number of workers, nodes, global batch."""
    study = json.loads((folder / "study" / "study.json").read_text())
    return [(point["workers"], point["nodes"], point["global_batch"]) for point in study[name]]


def in_steps(slurm, folder, *flags):
    """Measure a script in an allocation of two nodes; return launcher, size and host of each worker."""
    (folder / "train.py").write_text(NATIVE)
    command = (*SCALE, *FEW, *flags, "--", "train.py", "{12/n}")
    done = slurm.run("salloc", "--nodes=2", *command, folder=folder)
    assert done.code == 0, done.err
    assert "Slurm allocation" in done.err
    files = sorted(folder.glob("study/trials/*/clock/rank-*.jsonl"))
    headers = [json.loads(file.read_text().splitlines()[0]) for file in files]
    assert {(header["kind"], header["threads"]) for header in headers} == {("native", 1)}
    return sorted((header["launcher"], header["size"], header["host"]) for header in headers)


def test_runs_are_steps_of_an_allocation_that_fill_its_nodes(slurm, tmp_path):
    started = in_steps(slurm, tmp_path, "-n", "1,2")

    assert started == [("slurm", 1, "node0"), ("slurm", 2, "node0"), ("slurm", 2, "node1")]
    assert points(tmp_path) == [(1, 1, 12), (2, 2, 12)]


@pytest.mark.long
def test_launchers_are_compared_in_steps(slurm, tmp_path):
    started = in_steps(slurm, tmp_path, "-n", "2", "--compare", "launcher=torchrun,srun")

    assert started == [(name, 2, host) for name in ("slurm", "torchrun") for host in ("node0", "node1")]
    assert points(tmp_path) == [(2, 2, 12)] * 2
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    variants = [point["variant"] for point in study["points"]]
    assert variants == ["launcher=torchrun", "launcher=srun"]
    assert all(point["step_s"]["exposed_sync"] > 0 for point in study["points"])


@pytest.mark.parametrize(
    ("asked", "of_one"),
    [
        ("--gpus-per-task=1", ["0", "1", "0", "1"]),
        long_param("--ntasks-per-gpu=1 --gpus=4", ["0,1"] * 4),
        long_param("--gpus-per-node=2", ["0,1"] * 4),
    ],
)
def test_steps_have_the_gpus_of_their_workers_however_these_were_requested(slurm, tmp_path, asked, of_one):
    (tmp_path / "steps.py").write_text(STEPS)
    flags = ("--nodes=2", "--ntasks=4", "--cpus-per-task=2", *asked.split())
    done = slurm.run("salloc", *flags, sys.executable, "steps.py", folder=tmp_path)

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [
        "1 tasks 0 0",
        *(f"4 node {task} 0,1" for task in range(2)),
        *(f"4 tasks {task} {gpus}" for task, gpus in enumerate(of_one)),
        *(f"8 tasks {task} 0,1" for task in range(8)),  # more workers than GPUs share them
    ]


def test_more_workers_than_an_allocation_has_room_for_are_refused_before_any_run(slurm, here):
    done = slurm.run("salloc", "--ntasks=2", *SCALE, "train.py", "-n", "1,4", *FEW, folder=here)

    assert done.code == 2
    (line,) = [line for line in done.err.splitlines() if "error:" in line]
    assert line.startswith("samestep: error: 4 workers oversubscribe Slurm allocation ")
    assert "room for 2" in line
    assert not (here / "study").exists()


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_study_is_submitted_as_jobs_and_collected_later(slurm, here):
    flags = ("--submit", "slurm", "--partition", "main", "--detach")
    sent = slurm.run(*SCALE, "train.py", "-n", "1,2,3,4", *FEW, *flags, folder=here)
    assert sent.code == 0, sent.err
    assert len(sent.out.split()) == 4 + 3  # and one process with the cores of 2, 3 and 4 workers

    done = finish(slurm.start(*SCALE, "--collect", "study", folder=here), deadline_s=180)

    assert done.code == 0, done.err
    assert points(here) == [(1, 1, 12), (2, 1, 12), (3, 1, 12), (4, 1, 12)]
    assert points(here, "one_process") == [(1, 1, 12)] * 3
    study = json.loads((here / "study" / "study.json").read_text())
    assert "--submit slurm" in " ".join(study["command"])
    assert "separate-jobs" in [note["code"] for note in study["notes"]]


@pytest.mark.long
def test_jobs_of_a_native_script_have_its_flags_for_their_workers(slurm, tmp_path):
    (tmp_path / "train.py").write_text(NATIVE)
    flags = ("--submit", "slurm", "--partition", "main", "-n", "1,2")
    done = slurm.run(*SCALE, *FEW, *flags, "--", "train.py", "{12/n}", folder=tmp_path)

    assert done.code == 0, done.err
    assert points(tmp_path) == [(1, 1, 12), (2, 1, 12)]
    assert points(tmp_path, "one_process") == [(1, 1, 12)]
    files = sorted(tmp_path.glob("study/trials/*/clock/rank-*.jsonl"))
    headers = [json.loads(file.read_text().splitlines()[0]) for file in files]
    assert sorted((header["kind"], header["size"]) for header in headers) == [
        ("native", n) for n in (1, 1, 2, 2)
    ]


def test_cancelled_jobs_are_reported(slurm, here):
    flags = ("--submit", "slurm", "--directive=--hold", "--detach")
    sent = slurm.run(*SCALE, "train.py", "-n", "1,2", *FEW, *flags, folder=here)
    slurm.run("scancel", *sent.out.split())
    done = slurm.run(*SCALE, "--collect", "study", folder=here)

    assert done.code == 1, done.err
    assert "2 workers, round 1" in done.err
    assert "was cancelled" in done.err
