"""The capacity of an allocation is read, and steps are sized by it."""

import pytest

from samestep.launchers.slurm_capacity import SlurmCapacity, slurm_capacity
from support.recordings import recording

SHELL = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
}
TWO_BY_TWO = SlurmCapacity(job="12", nodes=2, tasks=2, processors=8, first="gpu07")


def flags(held, workers, **changes):
    """Return the flags of srun except --relative=0 and --kill-on-bad-exit=1."""
    shape = {"nodes": 1, "largest": 4} | changes
    srun, *words, last = held.step(workers, **shape)
    assert (srun, last) == ("srun", "--kill-on-bad-exit=1")
    return [word for word in words if word != "--relative=0"]


def test_the_capacity_of_a_shell_with_an_allocation_is_read():
    assert slurm_capacity(SHELL) == TWO_BY_TWO
    assert slurm_capacity(SHELL | {"SLURM_CPUS_PER_TASK": "3"}).places == 4
    assert slurm_capacity(SHELL).places == 16


def test_without_further_variables_each_node_takes_one_worker():
    assert slurm_capacity({"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2"}) == SlurmCapacity(
        job="12", nodes=2, tasks=1, processors=1
    )


def test_all_nodes_take_as_many_workers_as_the_smallest_one():
    uneven = SHELL | {"SLURM_TASKS_PER_NODE": "3,1", "SLURM_JOB_CPUS_PER_NODE": "3,1"}

    assert slurm_capacity(uneven).places == 2


@pytest.mark.parametrize("name", ["slurm_sbatch_script", "slurm_interactive_step"])
def test_a_job_script_and_the_shell_of_salloc_have_a_capacity(name):
    assert slurm_capacity(recording(name).environment) == SlurmCapacity(
        job="5", nodes=2, tasks=2, processors=2, first="node0"
    )


@pytest.mark.parametrize("name", ["single", "slurm_step_2x2_rank3", "torchrun_one_host_rank1"])
def test_a_task_of_a_step_and_a_process_without_an_allocation_have_no_capacity(name):
    assert slurm_capacity(recording(name).environment) is None


@pytest.mark.parametrize(("largest", "each"), [(1, 2), (4, 2), (5, 3), (16, 8)])
def test_nodes_take_the_requested_tasks_unless_the_largest_step_needs_more(largest, each):
    assert TWO_BY_TWO.per_node(largest) == each


def test_a_worker_has_the_same_number_of_cpus_at_each_size():
    layout = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]

    assert flags(TWO_BY_TWO, 1) == [*layout, "--cpus-per-task=4", "--exact"]
    assert flags(TWO_BY_TWO, 4, nodes=2)[-2:] == ["--cpus-per-task=4", "--exact"]
    assert flags(TWO_BY_TWO, 1, largest=16)[-2:] == ["--cpus-per-task=1", "--exact"]
    limited = SlurmCapacity(job="12", nodes=2, tasks=2, processors=8, cpus_per_task=3)
    assert flags(limited, 2)[-2:] == ["--cpus-per-task=3", "--exact"]


def test_the_task_of_a_node_has_the_cpus_of_all_its_workers():
    layout = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]

    assert flags(TWO_BY_TWO, 4, nodes=2, launched="node") == [*layout, "--cpus-per-task=8", "--exact"]


def test_workers_that_share_cpus_at_one_size_share_them_at_each_size():
    assert flags(TWO_BY_TWO, 32, nodes=2, largest=32)[-1] == "--overcommit"
    assert flags(TWO_BY_TWO, 1, largest=32)[-1] == "--overcommit"


def test_the_description_has_the_nodes_and_the_cpus():
    assert TWO_BY_TWO.in_words() == "Slurm allocation 12 (2 node(s) with 8 processor(s): room for 16)"


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3),
        ({"SLURM_GPUS": "8"}, 4),
        ({"SLURM_GPUS_PER_TASK": "1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS": "8"}, 4),
        ({}, None),
    ],
)
def test_the_gpus_of_a_node_are_read_from_each_kind_of_request(variables, gpus):
    assert slurm_capacity(SHELL | variables).gpus == gpus


def test_a_step_requests_the_gpus_of_its_workers_only():
    held = SlurmCapacity(job="12", nodes=2, tasks=4, processors=16, gpus=4)

    assert flags(held, 1, largest=8)[-2:] == ["--gpus=1", "--gpus-per-node=1"]
    assert flags(held, 8, nodes=2, largest=8)[-2:] == ["--gpus=8", "--gpus-per-node=4"]
    assert flags(held, 12, nodes=2, largest=12)[-3:] == ["--overcommit", "--gpus=8", "--gpus-per-node=4"]
    assert held.places == 8
    assert SlurmCapacity(job="12", nodes=2, tasks=4, processors=16, gpus=2).per_node(4) == 2
    assert held.in_words() == "Slurm allocation 12 (2 node(s) with 16 processor(s) and 4 GPU(s): room for 8)"


def test_requests_of_the_job_for_each_task_are_removed_for_a_step():
    asked = {"SLURM_NTASKS_PER_GPU": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "cpu=4"}
    held = slurm_capacity(SHELL | asked)
    begins = {
        workers: held.step(workers, nodes=2, largest=64, launched=launched)[:-1]
        for workers, launched in ((4, "tasks"), (2, "node"), (64, "tasks"))
    }
    all_of_them = ["env", *(word for name in asked for word in ("-u", name)), "srun"]

    assert begins[4][:4] == ["env", "-u", "SLURM_NTASKS_PER_GPU", "srun"]
    assert begins[2][:8] == begins[64][:8] == all_of_them


def test_one_worker_can_have_the_cpus_of_several():
    assert flags(TWO_BY_TWO, 1, cores_of=2)[-2:] == ["--cpus-per-task=8", "--exact"]
    assert flags(TWO_BY_TWO, 1)[-2:] == ["--cpus-per-task=4", "--exact"]
