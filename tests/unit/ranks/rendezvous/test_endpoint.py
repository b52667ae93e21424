"""Ranks find the same rendezvous endpoint without communication, or report which variable is missing."""

import socket
import threading
from dataclasses import replace

import pytest

from samestep.base.errors import DetectionError
from samestep.base.place import Place
from samestep.launchers.detect import Detected, detect
from samestep.ranks.rendezvous.endpoint import PORTS, choose, resolve
from support.recordings import recording


def no_ancestors():
    return iter(())


def test_a_given_endpoint_is_used():
    assert choose(detect(recording("openmpi_2x2_rank3").environment)) == ("node0", 29511)
    assert choose(detect(recording("torchrun_one_host_rank1").environment)) == ("localhost", 40227)


def test_the_endpoint_of_the_caller_is_preferred_to_that_of_the_environment():
    detected = detect(recording("openmpi_2x2_rank3").environment)
    assert choose(detected, master=("other", 1234)) == ("other", 1234)


def test_tasks_of_a_slurm_step_use_its_first_node_and_one_port():
    step = recording("slurm_step_2x2_rank3").environment
    points = set()
    for rank in range(4):
        task = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % 2, "SLURM_NODEID": rank // 2}
        points.add(choose(detect({**step, **{name: str(value) for name, value in task.items()}})))

    ((address, port),) = points
    assert address == "node0"
    assert port in PORTS


def test_two_steps_of_one_job_use_different_ports():
    step = recording("slurm_step_2x2_rank3").environment
    assert choose(detect(step)) != choose(detect({**step, "SLURM_STEP_ID": "1"}))


def test_a_missing_address_or_port_is_completed_from_the_launcher():
    step = recording("slurm_step_2x2_rank3").environment
    derived = choose(detect(step))

    assert choose(detect({**step, "MASTER_PORT": "1234"})) == ("node0", 1234)
    assert choose(detect({**step, "MASTER_ADDR": "10.0.0.1"})) == ("10.0.0.1", derived[1])


def test_ranks_of_one_mpi_job_on_one_host_use_loopback():
    environment = recording("openmpi_one_host_rank3").environment
    other = {**environment, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_RANK": "0"}

    assert choose(detect(environment)) == choose(detect(other))
    assert choose(detect(environment))[0] == "127.0.0.1"


def test_the_port_of_a_job_without_a_name_follows_from_its_launcher_process():
    environment = recording("mpich_one_host_rank3").environment
    detected = detect(environment)

    def started(by, through=()):
        return lambda: iter([*((pid, environment) for pid in through), (by, {"HOME": "/"}), ("1", {})])

    direct = choose(detected, ancestors=started("4711"))
    assert direct == choose(detected, ancestors=started("4711", through=["5000", "5001"]))
    assert direct != choose(detected, ancestors=started("4712"))
    assert direct[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("openmpi_2x2_rank3", "-x MASTER_ADDR="),
        ("mpich_2x2_rank3", "-genv MASTER_ADDR"),
        ("intelmpi_2x2_rank3", "-genv MASTER_ADDR"),
        ("environment_full_rank3", "export MASTER_ADDR="),
    ],
)
def test_several_hosts_without_an_address_are_refused_with_the_flag_that_sets_it(name, flag):
    environment = {k: v for k, v in recording(name).environment.items() if not k.startswith("MASTER_")}
    with pytest.raises(DetectionError) as refused:
        choose(detect(environment), ancestors=no_ancestors)
    assert flag in str(refused.value)


def test_ranks_set_by_hand_need_a_port():
    detected = detect({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"})
    with pytest.raises(DetectionError, match="Set MASTER_PORT"):
        choose(detected)


def test_a_place_given_by_the_caller_needs_a_port():
    detected = Detected(place=Place(rank=0, size=2, local_size=2), launcher="arguments")
    with pytest.raises(DetectionError, match="MASTER_PORT"):
        choose(detected, ancestors=no_ancestors)
    assert choose(replace(detected, master_port=1234)) == ("127.0.0.1", 1234)


def test_an_address_resolves_to_itself():
    assert resolve("127.0.0.1") == "127.0.0.1"


def test_an_unknown_host_is_refused(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DetectionError, match=r"nowhere.*cannot be resolved.*Name or service not known"):
        resolve("nowhere")


def test_a_name_server_that_does_not_answer_is_an_error_after_the_timeout(monkeypatch):
    answered = threading.Event()

    def silent(*args, **kwargs):
        answered.wait()
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    try:
        with pytest.raises(DetectionError, match=r"no answer within 0\.01 s"):
            resolve("slow", timeout_s=0.01)
    finally:
        answered.set()
        for thread in threading.enumerate():
            if thread.name == "samestep-resolve":
                thread.join()
