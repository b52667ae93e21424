"""Ranks of an MPI job on several hosts find the host of rank 0."""

import socket
import threading

import pytest

from samestep.launchers import detect_task
from samestep.launchers.detect import detect
from samestep.launchers.detect_task import open_mpi_first, with_main_host
from samestep.ranks.rendezvous.endpoint import choose
from support.recordings import recording


def without_master(name, **changes):
    environment = {k: v for k, v in recording(name).environment.items() if not k.startswith("MASTER_")}
    return environment | changes


@pytest.mark.parametrize(
    ("hosts", "nodes", "first"),
    [
        ("login,node[1:0-1]@0(3)", 2, "node0"),
        ("node[1:0-1]@0(2)", 2, "node0"),
        ("gpu-[2:8-9,12]-ib@0(3)", 3, "gpu-08-ib"),
        ("login,a,b@0(3)", 2, "a"),
        ("a,b,c,d", 2, None),
        ("", 0, None),
    ],
)
def test_the_first_host_is_read_from_the_list_of_open_mpi(hosts, nodes, first):
    env = {"OMPI_MCA_orte_node_regex": hosts, "OMPI_MCA_orte_num_nodes": str(nodes)}
    assert open_mpi_first(env) == first


def test_the_rendezvous_of_open_mpi_is_on_the_first_host():
    environment = without_master("openmpi_2x2_rank3")
    assert choose(with_main_host(detect(environment), environment))[0] == "node0"


def test_a_known_or_unneeded_host_of_rank_0_is_not_requested():
    for name in ("openmpi_2x2_rank3", "mpich_one_host_rank3", "slurm_step_2x2_rank3", "single"):
        environment = recording(name).environment
        assert with_main_host(detect(environment), environment) == detect(environment)


class Hydra(threading.Thread):
    """Answers one rank as MPICH's process manager does; `others` has the values that other ranks have put."""

    def __init__(self, others):
        super().__init__()
        self.values, self.commands = dict(others), []
        ours, self.theirs = socket.socketpair()
        self._stream = ours.makefile("rw")
        ours.close()

    def run(self):
        with self._stream:
            for line in self._stream:
                fields = dict(word.split("=", 1) for word in line.split())
                self.commands.append(fields["cmd"])
                self._stream.write(self._answer(fields) + "\n")
                self._stream.flush()

    def _answer(self, asked):
        if asked["cmd"] == "put":
            self.values[asked["key"]] = asked["value"]
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_17_0",
            "put": "cmd=put_result rc=0 msg=success",
            "barrier_in": "cmd=barrier_out",
            "get": f"cmd=get_result rc=0 msg=success value={self.values.get(asked.get('key'))}",
            "finalize": "cmd=finalize_ack",
        }[asked["cmd"]]


@pytest.fixture
def hydra():
    detect_task._exchanged.cache_clear()
    started = []

    def start(**others):
        manager = Hydra(others)
        manager.start()
        started.append(manager)
        return manager

    yield start
    for manager in started:
        manager.theirs.close()
        manager.join()


def test_a_rank_of_mpich_gets_the_host_of_rank_0_from_hydra_once(hydra):
    manager = hydra(samestep="node7")
    environment = without_master("mpich_2x2_rank3", PMI_FD=str(manager.theirs.fileno()))

    for _ in range(2):
        found = with_main_host(detect(environment), environment)
        assert (found.master_addr, found.job) == ("node7", "kvs_17_0")
    assert manager.commands == ["init", "get_my_kvsname", "barrier_in", "get", "finalize"]


def test_rank_0_of_mpich_puts_its_host(hydra):
    manager = hydra()
    environment = without_master(
        "mpich_2x2_rank3", PMI_RANK="0", MPI_LOCALRANKID="0", PMI_FD=str(manager.theirs.fileno())
    )

    assert with_main_host(detect(environment), environment).master_addr == socket.gethostname()


@pytest.mark.parametrize("descriptor", ["9999", "0"])
def test_a_descriptor_that_is_not_hydras_is_ignored(descriptor):
    detect_task._exchanged.cache_clear()
    environment = without_master("mpich_2x2_rank3", PMI_FD=descriptor)
    assert with_main_host(detect(environment), environment) == detect(environment)
