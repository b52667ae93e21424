"""One process of several that does not know which is refused; a single one is not."""

import pytest

from samestep.base.errors import DetectionError
from samestep.launchers import lost_environment
from samestep.launchers.detect import detect
from samestep.launchers.lost_environment import Parent, is_alike, refuse_duplicates
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
def test_half_of_a_launchers_variables_is_refused(environment, lacking, launcher):
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
def test_a_launcher_that_nobody_knows_is_refused(environment):
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
def test_one_process_is_one_process(environment):
    assert detect(environment).place.size == 1


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [Parent(name="slurmstepd", pid=7, alike=1)],
        [Parent(name="bash", pid=7, alike=3)],
    ],
)
def test_a_process_alone_of_its_kind_goes_on(parents):
    refuse_duplicates({}, lambda: parents)


def test_processes_that_a_launcher_started_alike_are_refused():
    parents = [Parent(name="bash", pid=8, alike=1), Parent(name="mpirun.openmpi", pid=7, alike=4)]
    with pytest.raises(DetectionError, match=r"mpirun\.openmpi \(process 7\) started 4 processes like this"):
        refuse_duplicates({}, lambda: parents)


@pytest.mark.parametrize(
    ("seen", "alike"),
    [
        ([["python", "train.py"]], True),
        ([["env", "-i", "PATH=/bin", "python", "train.py"]], True),  # about to become it
        ([[], [], ["python", "train.py"]], True),  # becoming it
        ([["python", "other.py"]], False),
        ([["sh"]], False),
    ],
)
def test_who_runs_the_same_command_or_is_about_to_is_alike(seen, alike):
    looks = iter(seen)
    assert is_alike(lambda: next(looks), ["python", "train.py"]) == alike


def test_who_runs_nothing_any_more_is_not_alike():
    assert not is_alike(list, ["python", "train.py"], patience_s=0.0)


def test_a_jobs_script_is_one_process_whatever_started_it():
    environment = recording("slurm_interactive_step").environment
    refuse_duplicates(environment, lambda: [Parent(name="slurmstepd", pid=7, alike=2)])


def test_the_parents_of_this_process_are_no_launchers():
    assert all(parent.alike >= 1 for parent in lost_environment._parents())
