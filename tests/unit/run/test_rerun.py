"""A shell that holds an allocation from outside sends its work in."""

import shutil

import pytest

from samestep.base.errors import UsageError
from samestep.launch.job import Job, Program
from samestep.run.rerun import Allocation, allocation, one_task, step
from support.recordings import recording

SHELL = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}
COMMAND = ["python", "-m", "samestep", "run", "train.py"]


def job(**changes):
    return Job(program=Program(target="train.py"), **changes)


@pytest.fixture(autouse=True)
def has_srun(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def test_a_shell_on_a_login_node_holds_one():
    assert allocation(SHELL) == Allocation(job="12", nodes=2, tasks=4)
    assert allocation(SHELL | {"SLURM_CPUS_PER_TASK": "3"}).cpus_per_task == 3


def test_without_a_number_of_tasks_there_is_one_on_each_node():
    assert allocation({"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2"}).tasks == 2


@pytest.mark.parametrize(
    "name", ["single", "slurm_sbatch_script", "slurm_interactive_step", "slurm_step_2x2_rank3"]
)
def test_a_process_in_the_allocation_or_without_one_holds_none(name):
    assert allocation(recording(name).environment) is None


def test_another_launchers_rank_in_that_shell_goes_nowhere():
    assert allocation(SHELL | recording("torchrun_one_host_rank1").environment) is None


@pytest.mark.parametrize("workers", [None, 4])
def test_the_tasks_are_the_workers(workers):
    held = Allocation(job="12", nodes=2, tasks=4)
    assert step(job(workers=workers), held, COMMAND) == ["srun", "--kill-on-bad-exit=1", *COMMAND]


def test_one_task_on_each_node_can_start_more():
    held = Allocation(job="12", nodes=2, tasks=2, cpus_per_task=8)
    assert step(job(per_node=4), held, COMMAND)[2] == "--cpus-per-task=8"
    assert step(job(workers=8), held, COMMAND)[-2:] == COMMAND[-2:]


def test_one_task_has_the_processors_of_its_nodes_tasks():
    command = one_task(Allocation(job="12", nodes=2, tasks=4, cpus_per_task=3), COMMAND)
    assert {"--nodes=1", "--ntasks=1", "--cpus-per-task=6"} < set(command)
    assert command[-len(COMMAND) :] == COMMAND
    command = one_task(Allocation(job="12", nodes=2, tasks=2), COMMAND)
    assert not any(word.startswith("--cpus-per-task") for word in command)


def test_the_components_of_a_heterogeneous_allocation_are_to_be_named():
    held = allocation(SHELL | {"SLURM_HET_SIZE": "2"})
    with pytest.raises(UsageError, match="srun --het-group=0-1 samestep"):
        step(job(), held, COMMAND)


@pytest.mark.parametrize(("workers", "tasks"), [(3, 4), (8, 4), (1, 2), (3, 2)])
def test_any_other_number_is_an_error_with_both(workers, tasks):
    with pytest.raises(UsageError, match=rf"{workers} workers .* {tasks} task"):
        step(job(workers=workers), Allocation(job="12", nodes=2, tasks=tasks), COMMAND)


def test_a_machine_without_srun_is_told(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="no srun here"):
        step(job(), Allocation(job="12", nodes=1, tasks=1), COMMAND)
