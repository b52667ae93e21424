"""``samestep lab``, as a user types it."""

import json

import pytest

from support.forked_commands import samestep


def test_ranks_of_an_experiment_are_processes():
    ended = samestep("lab", "hello", "-n", 2, "--json")

    assert ended.code == 0, ended.err
    ranks = json.loads(ended.out)["values"]["ranks"]
    assert [one["after"] for one in ranks] == [0.0, 0.0]
    assert [one["identified_by"][:2] for one in ranks] == [
        ["RANK=0", "WORLD_SIZE=2"],
        ["RANK=1", "WORLD_SIZE=2"],
    ]


@pytest.mark.long
def test_a_killed_worker_changes_no_weight():
    ended = samestep("lab", "restart", "--json")

    assert ended.code == 0, ended.err
    values = json.loads(ended.out)["values"]
    assert values["equal_weights"]
    first, second = values["sessions"]
    assert first == 0 < second
