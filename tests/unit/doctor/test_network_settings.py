"""Settings that contradict the machine are problems, and settings that fit it are not."""

import pytest

from samestep.base.machine.interfaces import Interface
from samestep.doctor import network
from samestep.doctor.network import Network, Port

LO = Interface(name="lo", up=True, loopback=True, addresses=("127.0.0.1",))
ETH = Interface(name="eth0", up=True, addresses=("10.0.0.2",))
IB = Interface(name="ib0", up=True)
DOWN = Interface(name="eth1", up=False, addresses=("10.9.0.2",))
ACTIVE = Port(adapter="mlx5_0", number="1", state="ACTIVE", rate="200 Gb/sec", layer="InfiniBand")
DEAD = Port(adapter="mlx5_1", number="1", state="DOWN", rate="10 Gb/sec", layer="InfiniBand")


def situation(**changes):
    usual = {
        "interfaces": [LO, ETH, IB, DOWN],
        "ports": [ACTIVE, DEAD],
        "backend": "nccl",
        "nodes": 2,
        "local_size": 8,
        "accelerators": 8,
    }
    return Network(**{**usual, **changes})


def problems(here, **variables):
    return [finding.text for finding in network.variables(variables, here).findings if finding.hurts]


WRONG = [
    ({"GLOO_SOCKET_IFNAME": "ens3"}, "names ens3, but this host has lo, eth0, ib0, eth1"),
    ({"GLOO_SOCKET_IFNAME": "eth1"}, "eth1 is down"),
    ({"GLOO_SOCKET_IFNAME": "ib0"}, "ib0 has no IP address"),
    ({"GLOO_SOCKET_IFNAME": "lo"}, "GLOO_SOCKET_IFNAME=lo is loopback"),
    ({"NCCL_SOCKET_IFNAME": "ens"}, "fits none of this host's interfaces"),
    ({"NCCL_SOCKET_IFNAME": "=eth"}, "fits none of this host's interfaces"),
    ({"NCCL_SOCKET_IFNAME": "ib"}, "leaves ib0, none of which is up with an IP address"),
    ({"NCCL_SOCKET_IFNAME": "^eth,ib"}, "^eth,ib is loopback"),
    ({"NCCL_IB_HCA": "mlx4"}, "fits none of the InfiniBand ports (mlx5_0:1 ACTIVE, mlx5_1:1 DOWN)"),
    ({"NCCL_IB_HCA": "=mlx5_1:1"}, "fits no active one of"),
    ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1"),
    ({"NCCL_P2P_LEVEL": "LOC"}, "NCCL_P2P_LEVEL=LOC"),
    ({"NCCL_SHM_DISABLE": "1"}, "NCCL_SHM_DISABLE=1"),
    ({"NCCL_IB_DISABLE": "1"}, "mlx5_0:1 is active (200 Gb/sec)"),
    ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket"),
    ({"CUDA_LAUNCH_BLOCKING": "1"}, "wait for each kernel"),
    ({"GOMP_CPU_AFFINITY": "0-7"}, "the same for all 8 ranks"),
    ({"KMP_AFFINITY": "proclist=[0-7],explicit"}, "the same for all 8 ranks"),
]


@pytest.mark.parametrize(("variables", "message"), WRONG, ids=lambda one: str(one)[:40])
def test_a_setting_that_contradicts_the_machine_is_a_problem(variables, message):
    (text,) = problems(situation(), **variables)
    assert message in text


RIGHT = [
    ({}, {}),
    ({"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth", "NCCL_IB_HCA": "mlx5"}, {}),
    ({"NCCL_SOCKET_IFNAME": "^lo,docker", "NCCL_IB_HCA": "^mlx5_1", "NCCL_P2P_DISABLE": "0"}, {}),
    ({"GLOO_SOCKET_IFNAME": "lo"}, {"nodes": 1}),
    ({"NCCL_SOCKET_IFNAME": "lo"}, {"nodes": 1}),
    ({"NCCL_IB_DISABLE": "1"}, {"ports": [DEAD]}),
    ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx4"}, {"nodes": 1}),
    ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, {"accelerators": 1, "local_size": 1}),
    ({"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "ens"}, {"backend": "gloo"}),
    ({"CUDA_LAUNCH_BLOCKING": "1"}, {"accelerators": 0}),
    ({"GOMP_CPU_AFFINITY": "0-7"}, {"local_size": 1}),
    ({"KMP_AFFINITY": "granularity=fine,compact,1,0"}, {}),
    ({"OMP_PLACES": "cores"}, {}),
]


@pytest.mark.parametrize(("variables", "changes"), RIGHT, ids=lambda one: str(one)[:40])
def test_a_setting_that_fits_the_machine_is_no_problem(variables, changes):
    assert problems(situation(**changes), **variables) == []


def test_settings_are_shown_and_other_variables_are_not():
    part = network.variables(
        {"NCCL_DEBUG": "INFO", "PATH": "/bin", "GLOO_SOCKET_IFNAME": "eth0"}, situation()
    )
    assert part.rows == [("settings", "GLOO_SOCKET_IFNAME=eth0"), ("", "NCCL_DEBUG=INFO")]
