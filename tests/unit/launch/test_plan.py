"""The tasks of the launcher are the workers, unless more workers are requested."""

import socket

import pytest

from samestep.base.errors import UsageError
from samestep.base.place import Place
from samestep.launch.job import Job, Nodes, Program
from samestep.launch.plan import Join, Spawn, agreed_plan, plan
from samestep.launchers.detect import Detected

ALONE = Detected(place=Place())


def job(**changes):
    return Job(program=Program(target="train.py"), **changes)


def found(tasks, nodes=1, node=0, **more):
    local = tasks // nodes
    place = Place(rank=node * local, size=tasks, local_size=local, node=node, nodes=nodes, launcher="slurm")
    return Detected(place=place, launcher="slurm", master_addr="host0", master_port=1234, **more)


@pytest.mark.parametrize(
    ("changes", "local"), [({}, 1), ({"workers": 4}, 4), ({"per_node": 3}, 3), ({"workers": 1}, 1)]
)
def test_without_a_launcher_workers_are_started_here(changes, local):
    assert plan(job(**changes), ALONE) == Spawn(local=local, nodes=Nodes())


@pytest.mark.parametrize("tasks", [1, 2, 8])
@pytest.mark.parametrize("asked", ["absent", "equal"])
def test_the_launchers_tasks_are_the_workers(tasks, asked):
    decided = plan(job(workers=tasks if asked == "equal" else None), found(tasks))

    assert isinstance(decided, Join)
    assert decided.place.size == tasks
    assert decided.master == ("host0", 1234)


def test_tasks_join_if_the_number_per_node_is_theirs():
    assert isinstance(plan(job(per_node=2), found(4, nodes=2)), Join)


def test_one_task_per_node_spawns_the_workers_of_its_node():
    decided = plan(job(workers=8), found(2, nodes=2, node=1))

    assert decided == Spawn(local=4, nodes=Nodes(count=2, rank=1, endpoint="host0:1234"))
    assert decided.size == 8


def test_tasks_of_a_program_that_spawns_do_not_join_as_workers():
    there = found(2, nodes=2, node=1)

    assert plan(job(workers=2), there, spawns=True) == Spawn(
        local=1, nodes=Nodes(count=2, rank=1, endpoint="host0:1234")
    )
    assert isinstance(plan(job(workers=2), there), Join)
    assert isinstance(plan(job(), there, spawns=True), Join)


def test_a_single_task_spawns_all_workers():
    assert plan(job(workers=8), found(1)) == Spawn(local=8, nodes=Nodes())


def test_an_ipv6_address_is_in_brackets_before_its_port():
    there = found(2, nodes=2)
    six = Detected(place=there.place, launcher="slurm", master_addr="fe80::1", master_port=7)
    decided = plan(job(workers=4), six)

    assert isinstance(decided, Spawn)
    assert decided.nodes.endpoint == "[fe80::1]:7"


@pytest.mark.parametrize(("asked", "tasks", "nodes"), [(3, 4, 1), (8, 4, 1), (2, 4, 2), (3, 2, 2), (1, 2, 1)])
def test_a_number_of_workers_that_does_not_fit_the_tasks_is_refused_with_both_numbers(asked, tasks, nodes):
    with pytest.raises(UsageError, match=rf"{asked} workers .* {tasks} task"):
        plan(job(workers=asked), found(tasks, nodes=nodes))


def test_nodes_without_a_rendezvous_address_are_refused():
    nowhere = Detected(place=found(2, nodes=2).place, launcher="openmpi")
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        plan(job(workers=4), nowhere)


def test_nodes_given_by_flags_are_used():
    nodes = Nodes(count=2, rank=1, endpoint="a:1")
    assert plan(job(per_node=2, nodes=nodes), ALONE) == Spawn(local=2, nodes=nodes)
    assert plan(job(workers=4, nodes=nodes), ALONE) == Spawn(local=2, nodes=nodes)
    assert plan(job(nodes=nodes), ALONE) == Spawn(local=1, nodes=nodes)


def test_the_node_rank_comes_from_the_launcher_if_not_given():
    decided = plan(job(per_node=2, nodes=Nodes(count=2, endpoint="a:1")), found(2, nodes=2, node=1))
    assert isinstance(decided, Spawn)
    assert decided.nodes.rank == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": Nodes(count=2)}, "--master-addr"),
        ({"nodes": Nodes(count=2, endpoint="a:1")}, "--node-rank"),
        ({"workers": 3, "nodes": Nodes(count=2, rank=0, endpoint="a:1")}, "-n 3"),
        ({"max_restarts": 1, "nodes": Nodes(count=2, rank=0, endpoint="a:1")}, "--rdzv-backend c10d"),
    ],
)
def test_incomplete_or_contradictory_flags_for_nodes_are_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        plan(job(**changes), ALONE)


@pytest.mark.parametrize(
    ("decided", "line"),
    [
        (Spawn(local=2, nodes=Nodes()), "spawn: 2 workers on this node"),
        (
            Spawn(local=2, nodes=Nodes(count=3, rank=1, endpoint="a:1")),
            "spawn: 2 workers on this node, 6 = 3 nodes x 2, this is node 1, rendezvous at a:1 (static)",
        ),
        (
            Join(place=Place(rank=1, size=2, local_rank=1, local_size=2, launcher="mpich"), master=None),
            "join: this task is rank 1 of 2 (local rank 1 of 2 on node 0 of 1), started by mpich",
        ),
    ],
)
def test_a_plan_is_described_in_one_line(decided, line):
    assert decided.describe() == line


ONLY_TASK = Place(launcher="slurm")


def test_a_single_task_gets_a_free_port_on_this_host():
    with agreed_plan(
        Join(place=ONLY_TASK, master=None), Detected(place=ONLY_TASK, launcher="slurm"), is_given=False
    ) as plan:
        assert plan.master[0] == "127.0.0.1"
        socket.create_server(plan.master).close()


def test_a_single_task_keeps_the_address_of_its_launcher():
    plan = Join(place=ONLY_TASK, master=("node0", 29500))
    with agreed_plan(plan, Detected(place=ONLY_TASK, launcher="torchrun"), is_given=False) as settled:
        assert settled == plan
