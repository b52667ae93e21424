"""The doctor's findings, for situations as recorded."""

from dataclasses import replace
from functools import partial

import pytest

from samestep.base.errors import DetectionError
from samestep.base.machine.description import CpuShare, machine
from samestep.launchers.detect import detect
from samestep.ranks.world.device import DeviceFacts
from samestep.studies.doctor.context import predict
from support.recordings import RECORDINGS, recording

CPU_ONLY = DeviceFacts()


def known(address):
    return "10.0.0.1"


def unknown(address):
    raise DetectionError(f"{address} cannot be resolved")


def examined(name, *, cores=8, mask=None, facts=CPU_ONLY, address_of=known, **variables):
    mask = tuple(range(cores)) if mask is None else mask
    cpu = CpuShare(allowed=mask, cores=len(mask), machine=cores)
    environment = {k: v for k, v in {**recording(name).environment, **variables}.items() if v}
    here = replace(machine(), cpu=cpu)
    return predict(
        environment,
        detect(environment),
        here,
        devices=facts,
        available={"gloo", "nccl"}.__contains__,
        address_of=address_of,
    )


def hurting(diagnosis):
    return [finding.text for finding in diagnosis.findings if finding.hurts]


@pytest.mark.parametrize("case", RECORDINGS, ids=str)
def test_every_recorded_situation_can_be_examined(case):
    diagnosis = examined(case.name)
    assert diagnosis.detected.place == case.place
    assert diagnosis.backend == (None if case.place.size == 1 else "gloo")


def test_a_sound_step_has_no_findings():
    assert examined("slurm_step_2x2_rank3").findings == []


def test_a_batch_script_that_would_train_alone_hurts():
    (text,) = hurting(examined("slurm_sbatch_script"))
    assert "srun" in text


def test_an_unresolvable_master_hurts():
    (text, *_) = hurting(examined("slurm_step_2x2_rank3", address_of=unknown))
    assert "node0 cannot be resolved" in text


def test_several_hosts_without_an_address_hurt():
    (text,) = hurting(examined("openmpi_2x2_rank3", MASTER_ADDR="", MASTER_PORT=""))
    assert "-x MASTER_ADDR=" in text


def test_too_few_devices_hurt():
    two = DeviceFacts(kind="cuda", count=2, uuids=("A", "B"), label="cuda")
    diagnosis = examined("openmpi_one_host_rank3", facts=two)
    assert "4 ranks on this host, but 2 visible cuda" in hurting(diagnosis)[0]
    assert diagnosis.choice is None


def test_torchruns_one_thread_hurts_where_the_cpu_computes():
    (text,) = hurting(examined("torchrun_one_host_rank1"))
    assert "OMP_NUM_THREADS=4" in text

    gpus = DeviceFacts(kind="cuda", count=2, uuids=("A", "B"), label="cuda")
    assert hurting(examined("torchrun_one_host_rank1", facts=gpus)) == []
    assert hurting(examined("torchrun_one_host_rank1", cores=2)) == []


def test_more_threads_than_cores_hurt():
    (text,) = hurting(examined("slurm_step_2x2_rank3", OMP_NUM_THREADS="64"))
    assert "8 core(s)" in text


def test_open_mpis_binding_to_one_core_hurts():
    (text,) = hurting(examined("openmpi_one_host_rank3", mask=(3,)))
    assert "--bind-to none" in text


def test_a_task_that_slurm_bound_keeps_its_processors_to_itself():
    diagnosis = examined("slurm_step_2x2_rank3", mask=(0, 1), SLURM_CPUS_ON_NODE="4")
    assert diagnosis.threads.count == 2


def test_a_host_name_on_loopback_is_noted_between_nodes_and_does_not_hurt():
    on_loopback = partial(examined, "slurm_step_2x2_rank3", address_of=lambda address: "127.0.1.1")
    (finding,) = on_loopback().findings
    assert not finding.hurts
    assert "GLOO_SOCKET_IFNAME" in finding.text
    assert on_loopback(GLOO_SOCKET_IFNAME="eth0").findings == []


def test_an_inferred_layout_is_noted_but_does_not_hurt():
    diagnosis = examined("environment_pods_rank2")
    assert hurting(diagnosis) == []
    assert "host of its own" in diagnosis.findings[0].text


def test_contradictory_variables_are_not_a_finding_but_an_error():
    with pytest.raises(DetectionError):
        examined("environment_full_rank3", RANK="9")
