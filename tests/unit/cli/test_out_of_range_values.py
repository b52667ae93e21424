"""Numbers and lists out of range are refused before anything is planned, allocated or waited for."""

import pytest

from samestep.base.errors import DetectionError, UsageError
from samestep.bench.figures import Request as BenchRequest
from samestep.bench.step_times import Problem
from samestep.cli.main import run_command
from samestep.launch.job import Job, Nodes, Program
from samestep.launchers.detect import detect
from samestep.launchers.detect_task import open_mpi_first
from samestep.launchers.hostlist import MOST, hosts, tasks_per_node
from samestep.scaling.sweep.plan import Request
from samestep.training.settings import RunOptions

HUGE = 10**50
PROGRAM = Program(target="a", kind="module")


@pytest.mark.parametrize(
    "made",
    [
        lambda: Job(program=PROGRAM, workers=HUGE),
        lambda: Job(program=PROGRAM, per_node=HUGE),
        lambda: Job(program=PROGRAM, monitor_interval_s=1e50),
        lambda: Nodes(count=HUGE),
        lambda: RunOptions(keep=HUGE),
        lambda: BenchRequest(collective="all_reduce", sizes=(4,), seconds=1e50),
        lambda: Problem(batch_per_worker=HUGE),
        lambda: Problem(model="resnet9:99999999"),
    ],
)
def test_a_huge_number_is_refused(made):
    with pytest.raises(UsageError, match=r"--|-n"):
        made()


@pytest.mark.parametrize(
    "more", [{"workers": (1, HUGE)}, {"repeats": HUGE}, {"steps": HUGE}, {"warm_up": HUGE}, {"per_node": 0}]
)
def test_a_study_with_an_out_of_range_number_is_refused(tmp_path, more):
    usual = {"workers": (1, 2), "steps": 1, "warm_up": 0, "repeats": 1}

    with pytest.raises(UsageError):
        Request(target="a.py", folder=tmp_path, **(usual | more))


@pytest.mark.parametrize(
    "text",
    ["n[0-999999999]", "n[0-9]" * 12, "a[" * 3000, ",", "n[" + "9" * 5000 + "]", "n[\u0663]", "n[2-1]"],
)
def test_an_excessive_or_invalid_host_list_is_refused(text):
    with pytest.raises(DetectionError):
        hosts(text)


@pytest.mark.parametrize("text", ["2(x999999999)", "1" * 5000, "\u0663", "1(x\u0662)"])
def test_an_excessive_or_invalid_list_of_tasks_per_node_is_refused(text):
    with pytest.raises(DetectionError):
        tasks_per_node(text)


def test_host_lists_are_read_up_to_the_maximum():
    assert len(hosts(f"n[0-{MOST - 1}]")) == MOST
    with pytest.raises(DetectionError):
        hosts(f"n[0-{MOST}]")


@pytest.mark.parametrize("value", ["9" * 50, "9" * 5000, "\u0663", "1_000", "nan", "1.5"])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
def test_an_invalid_launcher_variable_is_refused_with_its_name(name, value):
    usual = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_PORT": "29500",
    }

    with pytest.raises(DetectionError, match=name):
        detect({**usual, "MASTER_ADDR": "127.0.0.1", name: value})


@pytest.mark.parametrize("nodes", ["n[2:8-99999999999]@0(3)", "n[2:-]@0(3)", "n[99999999999:8]@0(3)"])
def test_an_excessive_or_invalid_host_list_of_open_mpi_has_no_first_host(nodes):
    assert open_mpi_first({"OMPI_MCA_orte_node_regex": nodes, "OMPI_MCA_orte_num_nodes": "1"}) is None


@pytest.mark.parametrize("flag", ["--data-dir", "--config", "--resume"])
def test_a_path_that_is_too_long_is_refused_in_one_line(capsys, flag):
    code = run_command(["train", "mnist", f"{flag}={'a' * 5000}"])

    assert code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
