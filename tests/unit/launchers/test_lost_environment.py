"""A process that is one of several and has lost its rank is refused; a single process is not."""

import pytest

from samestep.base.errors import DetectionError
from samestep.launchers import detect_task
from samestep.launchers.detect import detect
from samestep.launchers.detect_task import Parent, refuse_duplicates, runs_command
from support.recordings import recording


def without(name, *variables):
    return {key: value for key, value in recording(name).environment.items() if key not in variables}


@pytest.mark.parametrize(
    ("environment", "lacking", "launcher"),
    [
        (without("slurm_step_2x2_rank3", "SLURM_PROCID"), "SLURM_PROCID", "slurm"),
        (without("slurm_step_2x2_rank3", "SLURM_STEP_ID"), "SLURM_STEP_ID", "slurm"),
        (
            without("openmpi_2x2_rank3", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
            "OMPI_COMM_WORLD_RANK",
            "openmpi",
        ),
        (without("mpich_2x2_rank3", "PMI_RANK"), "PMI_RANK", "mpich"),
        ({"SLURM_PROCID": "2"}, "SLURM_STEP_ID", "slurm"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "SLURM_STEP_ID", "slurm"),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "5"}, "SLURM_STEP_ID", "slurm"),
        (
            {**recording("slurm_sbatch_script").environment, "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"},
            "SLURM_STEP_ID",
            "slurm",
        ),
    ],
)
def test_incomplete_variables_of_a_launcher_are_refused(environment, lacking, launcher):
    with pytest.raises(DetectionError, match=f"{lacking} is not set.* {launcher}.*its rank is unknown"):
        detect(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "4"},
        {"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4"},
        {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"},
        {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"},
        {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"},
    ],
)
def test_an_unsupported_launcher_is_refused(environment):
    with pytest.raises(DetectionError, match="a launcher that samestep does not support started"):
        detect(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "1"},
        {"FLUX_JOB_SIZE": "4"},
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        recording("slurm_sbatch_script").environment,
        recording("slurm_interactive_step").environment,
        {"OMPI_COMM_WORLD_SIZE": "1"},
    ],
)
def test_a_process_without_peers_is_a_single_process(environment):
    assert detect(environment).place.size == 1


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [Parent(name="slurmstepd", pid=7, duplicates=1)],
        [Parent(name="bash", pid=7, duplicates=3)],
    ],
)
def test_a_process_without_duplicates_below_a_launcher_is_accepted(parents):
    refuse_duplicates({}, lambda: parents)


def test_duplicate_processes_below_a_launcher_are_refused():
    parents = [Parent(name="bash", pid=8, duplicates=1), Parent(name="mpirun.openmpi", pid=7, duplicates=4)]
    with pytest.raises(DetectionError, match=r"mpirun\.openmpi \(process 7\) started 4 processes like this"):
        refuse_duplicates({}, lambda: parents)


@pytest.mark.parametrize(
    ("seen", "alike"),
    [
        ([["python", "train.py"]], True),
        ([["env", "-i", "PATH=/bin", "python", "train.py"]], True),  # before its exec
        ([[], [], ["python", "train.py"]], True),  # during its exec
        ([["python", "other.py"]], False),
        ([["sh"]], False),
    ],
)
def test_processes_that_run_or_are_about_to_run_the_same_command_are_duplicates(seen, alike):
    commands = iter(seen)
    assert runs_command(lambda: next(commands), ["python", "train.py"]) == alike


def test_a_process_without_a_command_is_no_duplicate():
    assert not runs_command(list, ["python", "train.py"], patience_s=0.0)


def test_a_job_script_is_accepted_below_a_parent_with_duplicates():
    environment = recording("slurm_interactive_step").environment
    refuse_duplicates(environment, lambda: [Parent(name="slurmstepd", pid=7, duplicates=2)])


def test_each_parent_of_this_process_has_at_least_one_child_of_its_command():
    assert all(parent.duplicates >= 1 for parent in detect_task._parents())
