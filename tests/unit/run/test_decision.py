"""``samestep run`` decides about the workers, threads and checks of a job, and prints its decision."""

import pytest

from samestep.base.errors import UsageError
from samestep.base.machine.description import CpuShare
from samestep.launch.job import Job, Nodes, Program
from samestep.launch.local.failure import Failure
from samestep.launch.local.local_backend import Outcome, Restarts
from samestep.run import decision as decision_module
from samestep.run.decision import banner, decide, dry_run_lines, with_checks
from samestep.run.execution import log_failure
from support.recordings import recording

TASKS = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in (("RANK", "0"), ("SIZE", "4"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "4"))
} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}
JOINS = "import samestep\nwith samestep.join() as world: pass"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)"
BY_HAND = (
    "import torch.distributed as dist\nfrom torch.multiprocessing import Process\n"
    "def f(rank): dist.init_process_group('gloo', rank=rank, world_size=2)\n"
    "Process(target=f, args=(0,)).start()"
)
TEMPLATES = ("--gpus={local}", "--nodes", "{nodes}", "{node_rank}", "{n}", "{other}")
NATIVE = "import torch.distributed as dist\ndist.init_process_group('gloo')"


@pytest.fixture(autouse=True)
def _a_share_of_a_big_machine(monkeypatch):
    share = CpuShare(allowed=tuple(range(8)), cores=8, machine=64)
    monkeypatch.setattr(decision_module, "cpu_share", lambda: share)


@pytest.fixture
def settled(tmp_path):
    def settle(text, environment, *, threads=None, arguments=(), **options):
        file = tmp_path / "train.py"
        file.write_text(text)
        job = Job(program=Program(target=str(file), args=arguments), **options)
        return decide(job, mode="auto", threads=threads, environment=environment)

    return settle


def test_unbound_tasks_share_the_cores(settled):
    assert settled(NATIVE, TASKS).threads.count == 2


def test_tasks_bound_by_their_launcher_do_not_share_cores(settled):
    environment = recording("slurm_step_uneven_rank3").environment
    environment = environment | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}

    assert settled(NATIVE, environment | {"SLURM_CPUS_ON_NODE": "24"}).threads.count == 8
    assert settled(NATIVE, environment | {"SLURM_CPUS_ON_NODE": "8"}).threads.count == 2


def test_ranks_of_samestep_join_set_their_threads_and_print_their_number_themselves(settled):
    decision = settled(JOINS, TASKS)

    assert decision.threads is None
    assert decision.is_settled_by_join
    assert len(banner(decision)) == 1
    assert any(line.startswith("threads: ") and "samestep.join" in line for line in dry_run_lines(decision))
    assert settled(JOINS, TASKS, threads=3).threads.count == 3


def test_the_banner_names_the_source_of_the_number_of_threads(settled):
    first, _ = banner(settled(NATIVE, {"OMP_NUM_THREADS": "3"}, workers=2))
    assert first == "2 workers on this node, 3 threads each (OMP_NUM_THREADS=3)"

    first, _ = banner(settled(NATIVE, {}, workers=2))
    assert first == "2 workers on this node, 4 threads each"


def test_a_failure_that_may_be_a_consequence_of_another_node_is_logged_with_its_message(settled, capsys):
    nodes = Nodes(count=2, rank=0, endpoint="node0:29500")
    lost = Failure(
        rank=1,
        local_rank=1,
        pid=7,
        exit_code=1,
        error="PeerLost",
        message="rank 2 of 4 did not\ncome within 600 s.",
        traceback="Traceback\n",
    )
    log_failure(settled(NATIVE, {}, nodes=nodes, workers=4), Outcome(cause=lost), 0)

    (line,) = capsys.readouterr().err.splitlines()
    assert "rank 1 of 4" in line
    assert "PeerLost (exit code 1): rank 2 of 4 did not come within 600 s." in line


@pytest.mark.parametrize(
    ("message", "is_advised"),
    [("Found no NVIDIA driver on your system.", True), ("CUDA out of memory", False)],
)
def test_a_failure_for_want_of_a_gpu_is_logged_with_the_option_for_that(settled, capsys, message, is_advised):
    failed = Failure(rank=0, local_rank=0, pid=7, exit_code=1, error="RuntimeError", message=message)
    log_failure(settled(NATIVE, {}, workers=2), Outcome(cause=failed), Restarts(0))

    assert ("--device cpu" in capsys.readouterr().err) == is_advised


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_an_invalid_hang_timeout_is_refused(settled, seconds):
    with pytest.raises(UsageError, match="--hang-timeout"):
        with_checks(settled(NATIVE, TASKS), hang_timeout=seconds, sanitize=False)


def test_sanitize_needs_two_workers(settled):
    assert with_checks(settled(NATIVE, TASKS), hang_timeout=60.0, sanitize=True).sanitize
    with pytest.raises(UsageError, match=r"--sanitize .*-n 2"):
        with_checks(settled(NATIVE, {}, workers=1), hang_timeout=60.0, sanitize=True)


def test_sanitize_is_refused_for_a_program_that_is_no_script():
    """Only this finds a check that is asked for and silently left out."""
    job = Job(program=Program(target="/bin/true", kind="executable"), workers=2)
    decision = decide(job, mode="auto", threads=1, environment={})
    with pytest.raises(UsageError, match=r"--sanitize .*Python script"):
        with_checks(decision, hang_timeout=60.0, sanitize=True)


def test_a_number_of_workers_after_a_serial_script_gets_a_note(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    job = Job(program=Program(target=str(tmp_path / "train.py"), args=("-n", "2")))

    lines = dry_run_lines(decide(job, mode="auto", threads=None, environment={}))

    assert "train.py is a serial script" in lines[-1]
    assert "`-n`" in lines[-1]


def several(**values):
    return Nodes(count=2, backend="c10d", endpoint="host0:1234", **values)


@pytest.mark.parametrize(
    ("nodes", "filled"),
    [
        (Nodes(), ("--gpus=4", "--nodes", "1", "0", "4", "{other}")),
        (several(rank=1), ("--gpus=2", "--nodes", "2", "1", "4", "{other}")),
        (several(), ("--gpus=2", "--nodes", "2", "{node_rank}", "4", "{other}")),  # known after rendezvous
    ],
)
def test_templates_in_the_arguments_are_replaced_by_the_numbers_of_workers_and_nodes(settled, nodes, filled):
    decision = settled(SPAWNS, {}, workers=4, nodes=nodes, arguments=TEMPLATES)

    assert decision.job.program.args == filled
    assert decision.forks_workers


def test_templates_are_kept_without_a_number_of_workers(settled):
    assert settled(SPAWNS, {}, arguments=TEMPLATES).job.program.args == TEMPLATES


def test_processes_that_the_script_starts_are_workers_if_their_number_is_given(settled):
    assert settled(BY_HAND, {}, workers=2).forks_workers
    assert not settled(BY_HAND, {}).forks_workers


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        (SPAWNS, {"nodes": several()}, "-n"),
        (SPAWNS, {"nodes": several(least=1), "per_node": 2}, "--nnodes 2"),
        ("import samestep\nsamestep.spawn(print, 2)", {"nodes": several(), "workers": 4}, "--mode native"),
    ],
)
def test_a_script_that_starts_its_workers_is_refused_on_nodes_if_their_places_are_unknown(
    settled, text, options, named
):
    with pytest.raises(UsageError, match=rf"train.py .*{named}\b"):
        settled(text, {}, **options)


def test_a_script_that_spawns_is_refused_as_several_tasks_of_a_node(settled):
    with pytest.raises(UsageError, match="several tasks"):
        settled(SPAWNS, TASKS)
