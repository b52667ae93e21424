"""In a shell that holds an allocation from a login node, ``samestep run`` starts itself with srun."""

import shutil
import sys

import pytest

from samestep.base import env
from samestep.base.errors import UsageError
from samestep.launch.job import Job, Program
from samestep.run.rerun import Allocation, allocation, one_task, rerun_in_allocation, step
from support.recordings import recording

SHELL = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}
COMMAND = ["python", "-m", "samestep", "run", "train.py"]


def job(**changes):
    return Job(program=Program(target="train.py"), **changes)


@pytest.fixture(autouse=True)
def has_srun(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def test_a_shell_on_a_login_node_has_an_allocation():
    assert allocation(SHELL) == Allocation(job="12", nodes=2, tasks=4)
    assert allocation(SHELL | {"SLURM_CPUS_PER_TASK": "3"}).cpus_per_task == 3


def test_without_a_number_of_tasks_each_node_has_one():
    assert allocation({"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2"}).tasks == 2


@pytest.mark.parametrize(
    "name", ["single", "slurm_sbatch_script", "slurm_interactive_step", "slurm_step_2x2_rank3"]
)
def test_a_process_inside_an_allocation_or_without_one_has_none(name):
    assert allocation(recording(name).environment) is None


def test_a_rank_of_another_launcher_in_that_shell_has_no_allocation():
    assert allocation(SHELL | recording("torchrun_one_host_rank1").environment) is None


@pytest.mark.parametrize("workers", [None, 4])
def test_the_tasks_are_the_workers(workers):
    held = Allocation(job="12", nodes=2, tasks=4)
    assert step(job(workers=workers), held, COMMAND) == ["srun", "--kill-on-bad-exit=1", *COMMAND]


def test_one_task_on_each_node_can_start_several_workers():
    held = Allocation(job="12", nodes=2, tasks=2, cpus_per_task=8)
    assert step(job(per_node=4), held, COMMAND)[2] == "--cpus-per-task=8"
    assert step(job(workers=8), held, COMMAND)[-2:] == COMMAND[-2:]


def test_one_task_has_the_cpus_of_all_tasks_of_its_node():
    command = one_task(Allocation(job="12", nodes=2, tasks=4, cpus_per_task=3), COMMAND)
    assert {"--nodes=1", "--ntasks=1", "--cpus-per-task=6"} < set(command)
    assert command[-len(COMMAND) :] == COMMAND
    command = one_task(Allocation(job="12", nodes=2, tasks=2), COMMAND)
    assert not any(word.startswith("--cpus-per-task") for word in command)


def test_a_heterogeneous_allocation_needs_the_numbers_of_its_components():
    held = allocation(SHELL | {"SLURM_HET_SIZE": "2"})
    with pytest.raises(UsageError, match="srun --het-group=0-1 samestep"):
        step(job(), held, COMMAND)


@pytest.mark.parametrize(("workers", "tasks"), [(3, 4), (8, 4), (1, 2), (3, 2)])
def test_a_number_of_workers_that_does_not_fit_the_tasks_is_refused_with_both_numbers(workers, tasks):
    with pytest.raises(UsageError, match=rf"{workers} workers .* {tasks} task"):
        step(job(workers=workers), Allocation(job="12", nodes=2, tasks=tasks), COMMAND)


def test_a_machine_without_srun_is_refused(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="no srun here"):
        step(job(), Allocation(job="12", nodes=1, tasks=1), COMMAND)


def test_the_interpreter_of_the_tasks_has_the_options_of_this_one(monkeypatch, capsys):
    """``python -O -W error -m samestep run`` ran its tasks without them."""
    monkeypatch.setattr(env, "snapshot", lambda: SHELL)
    monkeypatch.setattr(sys, "warnoptions", ["error::FutureWarning"])
    monkeypatch.setattr(sys, "argv", ["samestep", "run", "train.py"])

    assert rerun_in_allocation(job(), dry_run=True)
    words = capsys.readouterr().out.split()
    assert "-Werror::FutureWarning" in words[words.index(sys.executable) : words.index("-m")]
