"""The ranks derive the address of rank 0, and agree on a free port."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from samestep.base.errors import DetectionError, PeerLost
from samestep.base.place import Place
from samestep.launchers.detect import Detected, detect
from samestep.ranks.rendezvous import endpoint
from samestep.ranks.rendezvous.endpoint import (
    PORTS,
    address_of,
    choose,
    ports_of,
    rendezvous_endpoint,
    resolve,
)
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


def found(rank, size=3, *, job="7.0", **more):
    place = Place(rank=rank, size=size, local_rank=rank, local_size=size, launcher="slurm")
    return Detected(place=place, launcher="slurm", job=job, **more)


def endpoint_of(detected, **options):
    with rendezvous_endpoint(detected, **options) as point:
        return point


def endpoints_of(jobs, size=3, **options):
    """Return the endpoint of each rank of each job, found at the same time."""
    with ThreadPoolExecutor(len(jobs) * size) as pool:
        pending = [
            [pool.submit(endpoint_of, found(rank, size, job=job), **options) for rank in range(size)]
            for job in jobs
        ]
        return [[one.result() for one in ranks] for ranks in pending]


@pytest.fixture
def listeners():
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_the_ranks_of_a_job_agree_on_a_free_port():
    (points,) = endpoints_of(["1.0"])

    ((address, port),) = set(points)
    assert address == "127.0.0.1"
    with socket.create_server((address, port)):
        pass


def test_ports_that_other_processes_use_are_skipped(listeners):
    silent, answering = (listeners(port) for port in ports_of("slurm 2.0")[:2])

    def answer():
        with suppress(OSError):
            while True:
                connection, _ = answering.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"220 mail.example.org ESMTP\n")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        (points,) = endpoints_of(["2.0"])
    finally:
        answering.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(set(points)) == 1
    assert silent.fileno() >= 0


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_rank_0_of_several_nodes_accepts_connections_over_ipv4_and_ipv6(monkeypatch, own):
    """Its own name may resolve to an address of loopback on its host."""
    place = Place(rank=0, size=2, nodes=2, launcher="slurm")
    monkeypatch.setattr(endpoint, "resolve", lambda _: own)
    seen = []

    def send(listener, *_):
        address, port, *_ = listener.getsockname()
        for loopback in ("127.0.0.1", "::1"):
            socket.create_connection((loopback, port), timeout=5).close()
        seen.append(address)

    monkeypatch.setattr(endpoint, "_send_port", send)
    endpoint_of(Detected(place=place, launcher="slurm", job="2.5", hosts="localhost"))

    assert seen == ["::"]


def test_two_jobs_with_the_same_candidate_ports_use_different_ones(monkeypatch):
    monkeypatch.setattr(endpoint, "ports_of", lambda _: ports_of("one list for all"))

    first, second = endpoints_of(["3.0", "4.0"])

    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


def test_each_job_has_its_own_candidate_ports():
    assert len(set(ports_of("slurm 1.0"))) == len(ports_of("slurm 1.0")) > 1
    assert set(ports_of("slurm 1.0")) <= set(PORTS)
    assert ports_of("slurm 1.0") != ports_of("slurm 1.1")


def test_rank_0_names_the_ranks_that_did_not_arrive():
    with ThreadPoolExecutor(2) as pool:
        main = pool.submit(endpoint_of, found(0, 4, job="5.0"), timeout_s=1)
        assert pool.submit(endpoint_of, found(2, 4, job="5.0"), timeout_s=30).result()
        with pytest.raises(PeerLost, match="rank 1, 3 of 4 did not come within 1 s"):
            main.result()


def test_the_error_of_rank_0_in_a_shell_of_slurm_mentions_srun_pty(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda _: True)
    with pytest.raises(PeerLost, match=r"Is this a shell that `srun --pty` has started"):
        endpoint_of(found(0), timeout_s=0.01)


def test_the_error_of_another_rank_has_the_address_of_rank_0():
    with pytest.raises(PeerLost, match=r"rank 0 did not answer on 127\.0\.0\.1 within 0 s"):
        endpoint_of(found(1, job="6.0"), timeout_s=0)


def test_a_job_without_a_free_port_is_refused(listeners):
    for port in ports_of("slurm 8.0"):
        listeners(port)
    with pytest.raises(DetectionError, match=r"none of the ports .* is free on .* Set MASTER_PORT"):
        endpoint_of(found(0, job="8.0"))


def test_rank_0_refuses_an_address_that_is_not_its_own(monkeypatch):
    monkeypatch.setattr(endpoint, "resolve", lambda _: "192.0.2.1")  # of no host, by RFC 5737
    elsewhere = Detected(
        place=Place(rank=0, size=2, nodes=2, launcher="openmpi"), launcher="openmpi", job="9", hosts="other"
    )
    with pytest.raises(DetectionError, match=r"other \(192\.0\.2\.1\), which is another host"):
        endpoint_of(elsewhere)


def test_a_given_port_is_used_without_communication():
    assert endpoint_of(found(0, master_port=1234)) == ("127.0.0.1", 1234)
    assert endpoint_of(found(1), master=("localhost", 99)) == ("localhost", 99)


def test_the_port_stays_reserved_and_only_a_socket_that_shares_it_can_bind_it():
    ranks = ThreadPoolExecutor(1)
    with ranks, ExitStack() as stack:
        other = ranks.submit(endpoint_of, found(1, 2, job="10.0"))
        address, port = stack.enter_context(rendezvous_endpoint(found(0, 2, job="10.0")))
        assert other.result() == (address, port)
        with socket.create_server((address, port)):
            pass
        with socket.socket() as unshared, pytest.raises(OSError, match="in use"):
            unshared.bind((address, port))


NODE = "node-that-no-resolver-knows.invalid"


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Return a function that installs an ``scontrol`` that prints a text."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def prints(text):
        command = tmp_path / "scontrol"
        command.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        command.chmod(0o755)

    return prints


def test_an_unknown_name_gets_the_address_of_slurm(scontrol):
    scontrol(f"NodeName={NODE} Arch=x86_64\n   NodeAddr=10.1.2.3 NodeHostName={NODE} Version=23.02\n")

    assert resolve(NODE) == "10.1.2.3"


def test_slurm_is_not_called_for_a_name_that_resolves(scontrol):
    scontrol("NodeAddr=10.1.2.3\n")

    assert resolve("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("text", [None, "", "Node not found\n", f"NodeAddr={NODE} \n"])
def test_an_unknown_name_is_an_error_without_an_address_of_slurm(scontrol, text):
    if text is not None:
        scontrol(text)

    assert address_of(NODE) is None
    with pytest.raises(DetectionError, match="MASTER_ADDR"):
        resolve(NODE)
