"""The doctor's findings in recorded environments."""

from dataclasses import replace
from functools import partial

import pytest

from samestep.base.errors import DetectionError
from samestep.base.machine.description import CpuShare, machine
from samestep.doctor.context import predict
from samestep.launchers.detect import detect
from samestep.ranks.world.device import DeviceFacts
from support.recordings import RECORDINGS, recording

CPU_ONLY = DeviceFacts()


def resolve(address):
    return "10.0.0.1"


def fail_to_resolve(address):
    raise DetectionError(f"{address} cannot be resolved")


def examined(name, *, cores=8, mask=None, facts=CPU_ONLY, address_of=resolve, **variables):
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


def problems(diagnosis):
    return [finding.text for finding in diagnosis.findings if finding.hurts]


@pytest.mark.parametrize("case", RECORDINGS, ids=str)
def test_every_recorded_environment_can_be_examined(case):
    diagnosis = examined(case.name)
    assert diagnosis.detected.place == case.place
    assert diagnosis.backend == (None if case.place.size == 1 else "gloo")


def test_a_correct_slurm_step_has_no_findings():
    assert examined("slurm_step_2x2_rank3").findings == []


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("slurm_sbatch_script", {}, "srun"),
        ("slurm_step_2x2_rank3", {"address_of": fail_to_resolve}, "node0 cannot be resolved"),
        ("openmpi_2x2_rank3", {"MASTER_ADDR": "", "MASTER_PORT": ""}, "-x MASTER_ADDR="),
        ("slurm_step_2x2_rank3", {"OMP_NUM_THREADS": "64"}, "8 core(s)"),
        ("openmpi_one_host_rank3", {"mask": (3,)}, "--bind-to none"),
    ],
    ids=["no srun", "unresolvable master", "no address", "more threads than cores", "bound to one core"],
)
def test_a_problem_is_found(name, changes, words):
    text, *more = problems(examined(name, **changes))
    assert words in text
    assert not more or "address_of" in changes


def test_too_few_devices_are_a_problem():
    two = DeviceFacts(kind="cuda", count=2, uuids=("A", "B"), label="cuda")
    diagnosis = examined("openmpi_one_host_rank3", facts=two)
    assert "4 ranks on this host, but 2 visible cuda" in problems(diagnosis)[0]
    assert diagnosis.choice is None


def test_the_single_thread_of_torchrun_is_a_problem_on_the_cpu():
    (text,) = problems(examined("torchrun_one_host_rank1"))
    assert "OMP_NUM_THREADS=4" in text

    gpus = DeviceFacts(kind="cuda", count=2, uuids=("A", "B"), label="cuda")
    assert problems(examined("torchrun_one_host_rank1", facts=gpus)) == []
    assert problems(examined("torchrun_one_host_rank1", cores=2)) == []


def test_a_task_bound_by_slurm_uses_all_cores_of_its_mask():
    diagnosis = examined("slurm_step_2x2_rank3", mask=(0, 1), SLURM_CPUS_ON_NODE="4")
    assert diagnosis.threads.count == 2


def test_a_host_name_on_loopback_is_a_note_between_nodes():
    on_loopback = partial(examined, "slurm_step_2x2_rank3", address_of=lambda address: "127.0.1.1")
    (finding,) = on_loopback().findings
    assert not finding.hurts
    assert "GLOO_SOCKET_IFNAME" in finding.text
    assert on_loopback(GLOO_SOCKET_IFNAME="eth0").findings == []


def test_an_inferred_layout_is_a_note():
    diagnosis = examined("environment_pods_rank2")
    assert problems(diagnosis) == []
    assert "host of its own" in diagnosis.findings[0].text


def test_contradictory_variables_are_an_error():
    with pytest.raises(DetectionError):
        examined("environment_full_rank3", RANK="9")
