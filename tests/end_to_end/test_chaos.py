"""A training under one fault of each kind ends with the uninterrupted weights."""

import random
import re

import pytest

from support.chaos import (
    FAULTS,
    RUN,
    Victim,
    foreign_files_lost,
    inject,
    result,
    small_disk,
    steps_missing,
    whole,
)
from support.forked_commands import samestep, start
from support.systems import required

STEPS = 900


@pytest.fixture
def disk(tmp_path):
    try:
        with small_disk(tmp_path / "disk") as disk:
            yield disk
    except OSError as error:
        pytest.fail(str(error)) if required("tmpfs") else pytest.skip(str(error))


def launch(program, said):
    return start(*RUN, *program, into=said)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_training_survives_each_kind_of_fault_with_equal_bits(disk, tmp_path):
    draw = random.Random(6)
    faults = draw.sample(list(FAULTS), len(FAULTS))
    victim = Victim(disk, steps=STEPS, launch=launch)
    try:
        recoveries = list(inject(victim, faults, draw))
        said, torn = victim.said, result(victim.folder)
        assert steps_missing(victim) == set()
        assert foreign_files_lost(victim) == []
    finally:
        victim.end()

    assert [one.fault for one in recoveries] == faults
    done = samestep(*whole(tmp_path / "whole", steps=STEPS))
    assert done.code == 0, done.err
    assert torn["weights_sha256"] == result(tmp_path / "whole")["weights_sha256"]
    for words in (
        r"was killed by signal 9 \(SIGKILL\)",
        r"rank \d of 4 has not called .*\n.*(\n.*)*stopped \(process \d+ was sent SIGSTOP",
        rf"stopped by SIGTERM after step \d+ of {STEPS}, with a checkpoint",
        r"Chaos: signal 12 at ",
        r"No space left on device",
        r"not used: .*model\.safetensors",
    ):
        assert re.search(words, said), (words, said)
