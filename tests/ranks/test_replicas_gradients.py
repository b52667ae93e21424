"""Every way to run backward ends with the serial gradients, on every rank, with equal bits."""

import pytest
import torch
from support.replica_cases import (
    CASES,
    SHARES,
    assert_equal_gradients,
    gradients,
    mean_loss,
    network,
    plain,
    samples,
    share_of,
)
from torch import nn

import samestep
from samestep.replicas.replicate import SYNCHRONISERS, replicate
from samestep.world.threads import run_ranks

SYNCS = [name for name in SYNCHRONISERS if name != "ddp"]  # torch's DDP needs processes
TINY = 8 * 10  # bytes: a bucket or two per layer

pytestmark = pytest.mark.parametrize("sync", SYNCS)


def serial(case, *, steps=2, build=network):
    model = build()
    rounds = []
    for step in range(steps):
        model.zero_grad()
        case(model, samples() + step, 1.0)
        rounds.append(gradients(model))
    return rounds


def parallel(case, sync, shares, *, steps=2, build=network):
    """The gradients of each step on each rank."""

    def on_rank(world):
        model = build()
        with replicate(model, world, sync=sync, bucket_bytes=TINY):
            rounds = []
            for step in range(steps):
                model.zero_grad()
                case(model, *share_of(world, samples() + step, shares))
                rounds.append(gradients(model))
        return rounds

    return run_ranks(on_rank, len(shares))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_are_the_serial_ones(case, sync, shares):
    expected = serial(case)
    ranks = parallel(case, sync, shares)
    for rounds in ranks:
        for found, wanted, first in zip(rounds, expected, ranks[0], strict=True):
            assert_equal_gradients(found, wanted)
            assert all(value is None or value.equal(first[name]) for name, value in found.items())
