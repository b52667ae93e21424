"""Six faults, one after another, in one training by four workers: it ends with the undisturbed weights."""

import random
import re

import pytest

from support.chaos import FAULTS, Victim, result, small_disk, torment, undisturbed
from support.systems import required

STEPS = 90


@pytest.fixture
def disk(tmp_path):
    try:
        with small_disk(tmp_path / "disk") as disk:
            yield disk
    except OSError as error:
        pytest.fail(str(error)) if required("tmpfs") else pytest.skip(str(error))


@pytest.mark.timeout(400)
def test_a_training_survives_each_kind_of_fault_with_equal_bits(disk, tmp_path):
    draw = random.Random(6)
    faults = draw.sample(list(FAULTS), len(FAULTS))
    victim = Victim(disk, steps=STEPS)
    try:
        recoveries = list(torment(victim, faults, draw))
        said, torn = victim.said, result(victim.folder)
    finally:
        victim.end()

    assert [one.fault for one in recoveries] == faults
    assert torn["weights_sha256"] == undisturbed(tmp_path / "whole", steps=STEPS)
    for words in (
        r"was killed by signal 9 \(SIGKILL\)",
        r"rank \d of 4 does not come .*\n.*(\n.*)*stopped \(process \d+ was sent SIGSTOP",
        r"stopped by SIGTERM after step \d+ of 90, with a checkpoint",
        r"Chaos: signal 12 at ",
        r"No space left on device",
        r"not used: .*model\.safetensors",
    ):
        assert re.search(words, said), (words, said)
