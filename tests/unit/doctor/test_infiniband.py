"""InfiniBand ports that are active but have no IP address are reported."""

from samestep.base.machine.interfaces import interfaces
from samestep.doctor.network import Network, has_device_files, infiniband, read_ports
from support import trees

ADDRESSES = {"eth0": ["10.0.0.2"], "lo": ["127.0.0.1"]}


def judged(root, *, backend="gloo", nodes=2, addresses=ADDRESSES, device_files=True):
    among = interfaces(addresses, root=root)
    network = Network(
        interfaces=among, ports=read_ports(root), backend=backend, nodes=nodes, device_files=device_files
    )
    return {finding.text: finding.hurts for finding in infiniband(network).findings}


def machine(tmp_path, **changes):
    files = {**trees.loopback(), **trees.interface("eth0"), **trees.interface("ib0", speed="")}
    return trees.planted(tmp_path, {**files, **trees.infiniband_port(**changes)})


def test_a_port_is_read_from_sysfs(tmp_path):
    (port,) = read_ports(machine(tmp_path))
    assert (port.name, port.state, port.rate, port.layer) == (
        "mlx5_0:1",
        "ACTIVE",
        "200 Gb/sec (4X HDR)",
        "InfiniBand",
    )
    assert port.interfaces == ("ib0",)


def test_an_active_port_without_an_address_is_a_problem_for_gloo_and_a_note_for_nccl(tmp_path):
    root = machine(tmp_path)
    ((text, hurts),) = judged(root).items()
    assert hurts
    assert "mlx5_0:1 is active (200 Gb/sec (4X HDR)), but ib0 has no IP address" in text
    assert "GLOO_SOCKET_IFNAME=ib0" in text

    ((text, hurts),) = judged(root, backend="nccl").items()
    assert not hurts
    assert "NCCL uses it without" in text


def test_a_port_without_an_interface_is_a_problem(tmp_path):
    ((text, hurts),) = judged(machine(tmp_path, net="")).items()
    assert hurts
    assert "it has no network interface" in text


def test_a_port_with_an_address_has_no_finding(tmp_path):
    assert judged(machine(tmp_path), addresses={**ADDRESSES, "ib0": ["10.1.0.2"]}) == {}


def test_a_single_node_has_no_finding(tmp_path):
    assert judged(machine(tmp_path), nodes=1) == {}


def test_a_port_that_is_down_is_a_note_if_another_is_active(tmp_path):
    root = machine(tmp_path)
    trees.planted(root, trees.infiniband_port("mlx5_1", state="1: DOWN", net="ib1"))
    found = judged(root, addresses={**ADDRESSES, "ib0": ["10.1.0.2"]})
    assert list(found.values()) == [False]
    assert "mlx5_1:1" in next(iter(found))


def test_a_machine_with_all_ports_down_has_no_finding(tmp_path):
    assert judged(machine(tmp_path, state="1: DOWN")) == {}


def test_missing_device_files_in_a_container_are_a_problem_for_nccl(tmp_path):
    root = machine(tmp_path)
    assert not has_device_files(root)
    found = judged(root, backend="nccl", addresses={**ADDRESSES, "ib0": ["10.1.0.2"]}, device_files=False)
    ((text, hurts),) = found.items()
    assert hurts
    assert "--device=/dev/infiniband" in text

    trees.planted(root, {"dev/infiniband/uverbs0": ""})
    assert has_device_files(root)
