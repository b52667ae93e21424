"""``samestep bench``, as a user types it."""

import json
import re

from samestep.base.machine.description import cpu_share
from samestep.ranks.collectives.algorithm_choice import Crossovers
from support.forked_commands import samestep

BIND = ("--bind", "core") if cpu_share().cores > 1 else ()


def test_steps_of_two_workers_are_measured_relative_to_those_without_synchronization():
    ended = samestep("bench", "step", "-n", 2, "--sync", "flat,ddp", "--seconds", 0.1, "--json")
    rows = [json.loads(line) for line in ended.out.splitlines()]

    assert ended.code == 0, ended.err
    assert [row["sync"] for row in rows] == ["alone", "flat", "ddp"]
    assert set(rows[0]) == {
        *("model", "batch_per_worker", "workers", "sync", "step_s", "exposed_sync_s", "efficiency"),
        "efficiency_quartiles",
    }


def test_all_reduce_of_two_workers_is_measured_and_chosen_by_a_training(tmp_path):
    ended = samestep(
        "bench",
        "all-reduce",
        "-n",
        2,
        "--sizes",
        "4,1K",
        "--algorithm",
        "native,shared_memory",
        "--seconds",
        0.01,
        "--json",
        "--save",
        *BIND,
        XDG_CACHE_HOME=str(tmp_path),
    )
    rows = [json.loads(line) for line in ended.out.splitlines()]

    assert ended.code == 0, ended.err
    assert [(row["algorithm"], row["bytes"]) for row in rows] == [
        (name, nbytes) for nbytes in (4, 1024) for name in ("native", "shared_memory")
    ]
    assert {(row["collective"], row["ranks"]) for row in rows} == {("all_reduce", 2)}
    assert "2 workers on this node" in ended.err
    assert ("each bound to cores of its own" in ended.err) == bool(BIND)

    options = ("--epochs", 1, "--subset", 128, "--algorithm", "auto", "--out", tmp_path / "run")
    ended = samestep("train", "digits", "-n", 2, *options, XDG_CACHE_HOME=str(tmp_path))
    (told,) = re.findall(r"^gradients: all-reduce by (.*)$", ended.err, re.MULTILINE)
    (text,) = re.findall(
        r'^algorithm = "(.*)"$', (tmp_path / "run" / "config.toml").read_text(), re.MULTILINE
    )

    assert ended.code == 0, ended.err
    assert told == Crossovers.parse(text).describe()
    assert json.loads(next((tmp_path / "samestep").rglob("*.json")).read_text())["algorithm"] == text
