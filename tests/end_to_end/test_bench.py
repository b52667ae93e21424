"""``samestep bench``, as a user types it."""

import json

from samestep.base.machine.description import cpu_share
from support.forked_commands import samestep

BIND = ("--bind", "core") if cpu_share().cores > 1 else ()


def test_steps_of_two_workers_are_measured_relative_to_those_without_synchronization():
    ended = samestep("bench", "step", "-n", 2, "--sync", "flat,ddp", "--seconds", 0.1, "--json")
    rows = json.loads(ended.out)

    assert ended.code == 0, ended.err
    assert [row["sync"] for row in rows] == ["alone", "flat", "ddp"]
    assert set(rows[0]) == {
        *("model", "batch_per_worker", "workers", "sync", "step_s", "exposed_sync_s", "efficiency"),
        "efficiency_quartiles",
    }


def test_all_reduce_of_two_workers_is_measured():
    ended = samestep("bench", "all-reduce", "-n", 2, "--sizes", "4,1K", "--seconds", 0.01, "--json", *BIND)
    rows = json.loads(ended.out)

    assert ended.code == 0, ended.err
    assert [(row["algorithm"], row["bytes"]) for row in rows] == [
        (name, nbytes) for nbytes in (4, 1024) for name in ("native", "direct", "shared_memory")
    ]
    assert {(row["collective"], row["ranks"]) for row in rows} == {("all_reduce", 2)}
    assert "2 workers on this node" in ended.err
    assert ("each bound to cores of its own" in ended.err) == bool(BIND)
