"""Pods that were set up for torchrun are refused without it; with it, or with flags, they are accepted."""

import pytest

from samestep.base.errors import DetectionError
from samestep.cli.main import run_command
from samestep.doctor.checks import Options, run_checks
from samestep.launchers.detect import detect
from samestep.launchers.detect_task import detect_task, refuse_pods
from samestep.ranks.world import join as joining
from support.recordings import recording

TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-0",
    "PET_MASTER_PORT": "29500",
}
PYTORCH_JOB = {
    **recording("environment_pods_rank2").environment,
    "RANK": "1",
    "WORLD_SIZE": "4",
    "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
}


@pytest.mark.parametrize(
    "environment",
    [
        TRAIN_JOB,
        {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-0:29400"},
        {"PET_NODE_RANK": "1"},
        {"PET_NNODES": "2", "RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_one_of_several_pods_is_refused(environment):
    with pytest.raises(DetectionError, match=r"PET_.*one of several pods.*torchrun --no-python"):
        refuse_pods(environment, detect(environment))


def test_the_number_of_a_pod_is_not_used_as_a_rank():
    with pytest.raises(
        DetectionError, match=r"RANK=1 is the number of this pod, not of one of its 2 workers"
    ):
        refuse_pods(PYTORCH_JOB, detect(PYTORCH_JOB))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "0"},
        {**TRAIN_JOB, **recording("torchrun_one_host_rank1").environment},
        {**TRAIN_JOB, **recording("slurm_step_2x2_rank3").environment},
        {**PYTORCH_JOB, "PET_NPROC_PER_NODE": "1"},
        {**PYTORCH_JOB, "PET_NPROC_PER_NODE": "auto"},
        {**PYTORCH_JOB, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_complete_settings_of_torchrun_or_another_launcher_are_accepted(environment):
    refuse_pods(environment, detect(environment))


def test_a_given_number_of_nodes_is_accepted():
    assert detect_task(TRAIN_JOB, nodes=2).place.size == 1
    with pytest.raises(DetectionError):
        detect_task(TRAIN_JOB)


def test_run_doctor_and_join_refuse_one_of_several_pods(monkeypatch, tmp_path, capsys):
    script = tmp_path / "x.py"
    script.write_text("print(1)")
    monkeypatch.setattr("samestep.base.env.snapshot", lambda: dict(TRAIN_JOB))
    assert run_command(["run", "--dry-run", str(script)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "one of several pods" in line
    pod = ["--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "2", "--master-addr", "job-0"]
    assert run_command(["run", *pod, "--dry-run", str(script)]) == 0
    with pytest.raises(DetectionError):
        run_checks(TRAIN_JOB, Options(devices=False), checks=())
    with pytest.raises(DetectionError), joining.join():
        pass
