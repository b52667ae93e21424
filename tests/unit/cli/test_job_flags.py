"""Flags of ``samestep run`` are used or refused, never ignored."""

import pytest

from samestep.base import env
from samestep.cli.main import run_command

TASK = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run ``samestep run ... SCRIPT`` with `environment`; return its exit code, stdout and stderr."""
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group()")
    monkeypatch.chdir(tmp_path)

    def command(*arguments, environment=None):
        monkeypatch.setattr(env, "snapshot", lambda: dict(environment or {}))
        code = run_command(["run", "--dry-run", *map(str, arguments), str(script)])
        return code, *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    ("flags", "instead"),
    [
        (["--log-dir", "logs"], "mpirun --output-filename"),
        (["--tee", "3"], "mpirun --output-filename"),
        (["--log-dir", "logs", "--redirects", "1"], "mpirun --output-filename"),
        (["--max-restarts", "2"], "requeue"),
    ],
)
def test_flags_of_workers_are_refused_if_a_launcher_started_them(run, flags, instead):
    code, out, err = run(*flags, environment=TASK | {"MASTER_PORT": "1234"})

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert flags[0] in line
    assert "openmpi" in line
    assert instead in line


def test_a_port_alone_is_used_under_a_launcher(run, monkeypatch):
    from samestep.cli import run as module

    settled = []
    monkeypatch.setattr(module, "dry_run_lines", lambda decision: settled.append(decision.plan.master) or [])
    assert run("--master-port", 4711, environment=TASK)[0] == 0
    assert run("--master-port", 4711, environment=TASK | {"MASTER_ADDR": "::1", "MASTER_PORT": "1"})[0] == 0
    assert run("--master-addr", "localhost", environment=TASK)[0] == 0
    assert settled == [("127.0.0.1", 4711), ("::1", 4711), ("localhost", 29500)]


@pytest.mark.parametrize(
    "flags",
    [
        ["--master-port", 4711],
        ["--master-addr", "node0"],
        ["--node-rank", 7],
        ["--rdzv-backend", "etcd"],
        ["--rdzv-endpoint", "node0:29400"],
        ["--rdzv-conf", "timeout=3"],
        ["--nnodes", 2, "--rdzv-endpoint", "node0:1", "--master-port", 4711, "--node-rank", 0],
    ],
)
def test_flags_of_several_nodes_are_refused_on_one_node(run, flags):
    code, out, err = run(*flags)

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert f"{flags[-2]} {flags[-1]}" in line or "--master-port" in line


STATIC = ["--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1"]
C10D = ["--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([*STATIC, "--master-port", 99999], "--master-port 99999"),
        ([*STATIC, "--master-port", -5], "--master-port -5"),
        ([*C10D, "node0:99999"], "--rdzv-endpoint node0:99999"),
        ([*C10D, "node0:0"], "--rdzv-endpoint node0:0"),
        ([*STATIC, "--rdzv-conf", "timeout=abc"], "--rdzv-conf timeout=abc"),
        ([*STATIC, "--rdzv-conf", "join_timeout=3"], "--rdzv-conf join_timeout=3: static"),
        ([*C10D, "node0", "--rdzv-conf", "min_nodes=3"], "--rdzv-conf min_nodes=3: c10d"),
        ([*C10D, "node0", "--rdzv-conf", "is_host=maybe"], "--rdzv-conf is_host=maybe"),
        ([*C10D, "node0", "--rdzv-conf", "join_timeout=0"], "--rdzv-conf join_timeout=0"),
        (["--monitor-interval", -1], "--monitor-interval -1"),
        (["--monitor-interval", "nan"], "--monitor-interval nan"),
    ],
)
def test_values_on_which_the_agent_of_torch_fails_are_refused(run, flags, named):
    code, out, err = run(*flags)

    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert named in line


def test_options_of_the_rendezvous_are_accepted(run):
    assert run(*STATIC, "--rdzv-conf", "timeout=30")[0] == 0
    assert run(*C10D, "node0", "--rdzv-conf", "is_host=False,join_timeout=30,keep_alive_interval=2")[0] == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--standalone"],
        ["--node-rank", 0, "--master-addr", "127.0.0.1"],
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", "[::1]:0"],
    ],
)
def test_rendezvous_flags_that_fit_one_node_are_accepted(run, flags):
    assert run(*flags)[0] == 0


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (["--node-rank", 0, "--master-addr", "fd77::1"], "[fd77::1]:29500"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "fd77::1"], "[fd77::1]:29500"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "[fd77::1]"], "[fd77::1]:29500"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "[fd77::1]:4711"], "[fd77::1]:4711"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "node0"], "node0:29500"),
    ],
)
def test_an_ipv6_address_is_separated_from_its_port(run, flags, where):
    code, out, err = run("--nnodes", 2, *flags)

    assert code == 0, err
    assert f" {where} (" in out
