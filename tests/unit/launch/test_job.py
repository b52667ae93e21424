import pytest

from samestep.base.errors import UsageError
from samestep.launch.job import Job, Nodes, Program, Std


def job(**changes):
    return Job(program=Program(target="train.py"), **changes)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("script", ["python", "train.py", "--lr", "a b"]),
        ("module", ["python", "-m", "train.py", "--lr", "a b"]),
        ("executable", ["train.py", "--lr", "a b"]),
    ],
)
def test_a_command_is_a_list_with_unsplit_arguments(kind, command):
    assert Program(target="train.py", kind=kind, args=("--lr", "a b")).command("python") == command


def test_a_script_name_that_begins_with_a_dash_becomes_a_path():
    assert Program(target="-x.py").command("python") == ["python", "./-x.py"]


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({}, None),
        ({"workers": 6}, 6),
        ({"per_node": 3}, 3),
        ({"per_node": 3, "nodes": Nodes(count=2)}, 6),
        ({"per_node": 3, "workers": 6, "nodes": Nodes(count=2)}, 6),
    ],
)
def test_requested_workers_are_counted_over_all_nodes(changes, total):
    assert job(**changes).asked() == total


def test_two_numbers_of_workers_must_agree():
    with pytest.raises(UsageError, match=r"-n 4 .* makes 6"):
        job(workers=4, per_node=3, nodes=Nodes(count=2)).asked()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": 0}, "-n 0"),
        ({"per_node": -1}, "--nproc-per-node -1"),
        ({"max_restarts": -1}, "--max-restarts -1"),
    ],
)
def test_impossible_numbers_are_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        job(**changes)


@pytest.mark.parametrize("changes", [{"count": 0}, {"count": 2, "rank": 2}, {"count": 2, "rank": -1}])
def test_impossible_nodes_are_refused(changes):
    with pytest.raises(UsageError):
        Nodes(**changes)


@pytest.mark.parametrize(
    ("text", "by_rank"),
    [("0", {0: 0, 3: 0}), ("3", {0: 3, 7: 3}), ("0:1,1:2", {0: 1, 1: 2, 2: 0})],
)
def test_streams_are_parsed_in_the_notation_of_torchrun(text, by_rank):
    std = Std.parse("--tee", text)
    assert {rank: std.of(rank) for rank in by_rank} == by_rank


@pytest.mark.parametrize("text", ["4", "x", "0:4", "1:", "-1", "0:1;1:2"])
def test_invalid_streams_are_refused(text):
    with pytest.raises(UsageError, match="--tee"):
        Std.parse("--tee", text)
