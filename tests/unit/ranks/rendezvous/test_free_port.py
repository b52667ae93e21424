"""Ranks that were given no port agree on one: in their own job's name, whoever else listens."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from samestep.base.errors import DetectionError, PeerLost
from samestep.base.place import Place
from samestep.launchers.detect import Detected
from samestep.ranks.rendezvous import free_port
from samestep.ranks.rendezvous.endpoint import PORTS, ports_of
from samestep.ranks.rendezvous.free_port import rendezvous_endpoint


def found(rank, size=3, *, job="7.0", **more):
    place = Place(rank=rank, size=size, local_rank=rank, local_size=size, launcher="slurm")
    return Detected(place=place, launcher="slurm", job=job, **more)


def meet(detected, **options):
    with rendezvous_endpoint(detected, **options) as point:
        return point


def meet_all(jobs, size=3, **options):
    """Return where each rank of each job meets, all at once."""
    with ThreadPoolExecutor(len(jobs) * size) as pool:
        pending = [
            [pool.submit(meet, found(rank, size, job=job), **options) for rank in range(size)] for job in jobs
        ]
        return [[one.result() for one in ranks] for ranks in pending]


@pytest.fixture
def listeners():
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_the_ranks_of_a_job_agree_on_a_free_port():
    (points,) = meet_all(["1.0"])

    ((address, port),) = set(points)
    assert address == "127.0.0.1"
    with socket.create_server((address, port)):
        pass


def test_a_port_that_another_listens_at_is_passed_over(listeners):
    silent, talkative = (listeners(port) for port in ports_of("slurm 2.0")[:2])

    def answer():
        with suppress(OSError):
            while True:
                connection, _ = talkative.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"220 mail.example.org ESMTP\n")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        (points,) = meet_all(["2.0"])
    finally:
        talkative.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(set(points)) == 1
    assert silent.fileno() >= 0


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_rank_0_of_several_nodes_is_reached_from_outside_by_either_family(monkeypatch, own):
    """Whatever its own name leads to on its own host."""
    place = Place(rank=0, size=2, nodes=2, launcher="slurm")
    monkeypatch.setattr(free_port, "resolve", lambda _: own)
    seen = []

    def tell(listener, *_):
        address, port, *_ = listener.getsockname()
        for loopback in ("127.0.0.1", "::1"):
            socket.create_connection((loopback, port), timeout=5).close()
        seen.append(address)

    monkeypatch.setattr(free_port, "_send_port", tell)
    meet(Detected(place=place, launcher="slurm", job="2.5", hosts="localhost"))

    assert seen == ["::"]


def test_two_jobs_whose_ports_are_the_same_do_not_meet(monkeypatch):
    monkeypatch.setattr(free_port, "ports_of", lambda _: ports_of("one row for all"))

    first, second = meet_all(["3.0", "4.0"])

    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


def test_jobs_have_rows_of_ports_of_their_own():
    assert len(set(ports_of("slurm 1.0"))) == len(ports_of("slurm 1.0")) > 1
    assert set(ports_of("slurm 1.0")) <= set(PORTS)
    assert ports_of("slurm 1.0") != ports_of("slurm 1.1")


def test_rank_0_names_who_did_not_come():
    with ThreadPoolExecutor(2) as pool:
        main = pool.submit(meet, found(0, 4, job="5.0"), timeout_s=1)
        assert pool.submit(meet, found(2, 4, job="5.0"), timeout_s=30).result()
        with pytest.raises(PeerLost, match="rank 1, 3 of 4 did not come within 1 s"):
            main.result()


def test_rank_0_in_a_shell_of_slurm_says_that_the_other_shells_may_have_ended(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda _: True)
    with pytest.raises(PeerLost, match=r"Is this a shell that `srun --pty` has started"):
        meet(found(0), timeout_s=0.01)


def test_the_others_say_where_they_looked_for_rank_0():
    with pytest.raises(PeerLost, match=r"rank 0 did not answer on 127\.0\.0\.1 within 0 s"):
        meet(found(1, job="6.0"), timeout_s=0)


def test_a_job_without_a_free_port_is_told(listeners):
    for port in ports_of("slurm 8.0"):
        listeners(port)
    with pytest.raises(DetectionError, match=r"none of the ports .* is free on .* Set MASTER_PORT"):
        meet(found(0, job="8.0"))


def test_rank_0_refuses_an_address_that_is_not_its_own(monkeypatch):
    monkeypatch.setattr(free_port, "resolve", lambda _: "192.0.2.1")  # nobody's, by RFC 5737
    elsewhere = Detected(
        place=Place(rank=0, size=2, nodes=2, launcher="openmpi"), launcher="openmpi", job="9", hosts="other"
    )
    with pytest.raises(DetectionError, match=r"other \(192\.0\.2\.1\), which is another host"):
        meet(elsewhere)


def test_a_port_that_was_given_is_not_discussed():
    assert meet(found(0, master_port=1234)) == ("127.0.0.1", 1234)
    assert meet(found(1), master=("localhost", 99)) == ("localhost", 99)


def test_the_port_stays_reserved_and_can_be_listened_at():
    ranks = ThreadPoolExecutor(1)
    with ranks, ExitStack() as stack:
        other = ranks.submit(meet, found(1, 2, job="10.0"))
        address, port = stack.enter_context(rendezvous_endpoint(found(0, 2, job="10.0")))
        assert other.result() == (address, port)
        with socket.create_server((address, port)):
            pass
        with socket.socket() as rude, pytest.raises(OSError, match="in use"):
            rude.bind((address, port))
