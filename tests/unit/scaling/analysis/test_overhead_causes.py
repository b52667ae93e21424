"""Overhead adds up, and has the right cause."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.scaling.analysis.points import measured
from samestep.scaling.analysis.speedup import relate, straggler, with_losses
from support.clocked_runs import OWN, PHASES, clocked, scaled


def points(*runs):
    return with_losses(relate(measured(runs)))


def shares(point) -> dict[str, float]:
    return {loss.cause: loss.share for loss in point.losses}


def test_an_ideal_point_loses_nothing():
    _, two = points(clocked(1), clocked(2, own=scaled(1 / 2)))

    assert sum(map(abs, shares(two).values())) < 1e-9


def test_communication_is_the_only_overhead():
    _, two = points(clocked(1), clocked(2, own=scaled(1 / 2), comm=0.012))

    assert two.efficiency == pytest.approx(0.8)
    assert two.losses[0].cause == "exchange"
    assert two.losses[0].share == pytest.approx(0.2)


def test_work_that_every_rank_computes_is_overhead():
    _, four = points(clocked(1), clocked(4, own=scaled(1 / 4, optimizer=OWN["optimizer"])))

    assert shares(four)["optimizer"] == pytest.approx(1 - four.efficiency)


def test_the_ideal_step_of_weak_scaling_is_as_long_as_at_the_baseline():
    _, four = points(clocked(1), clocked(4, batch=256, comm=0.024))

    assert four.mode == "weak"
    assert shares(four)["exchange"] == pytest.approx(0.2)
    assert shares(four).get("optimizer", 0.0) == pytest.approx(0)


@pytest.mark.parametrize("phase", PHASES)
def test_a_slow_rank_is_named_with_its_phase_and_all_that_it_costs(phase):
    own = [scaled(1 / 4)] * 4
    own[2] = scaled(1 / 4, **{phase: OWN[phase] / 4 + 0.010})
    _, four = points(clocked(1), clocked(4, own=own, comm=0.002))

    first = four.losses[0]
    whole = sum(OWN.values()) / 4 + 0.012
    assert (first.cause, first.rank, first.phase) == ("straggler", 2, phase)
    assert first.share == pytest.approx(0.010 / whole)
    assert shares(four)["exchange"] == pytest.approx(0.002 / whole)
    assert straggler(four).phase_s == pytest.approx(0.010)


def test_one_of_two_slow_ranks_is_named():
    own = [scaled(1 / 4), scaled(1 / 4), scaled(1 / 4, data=0.02), scaled(1 / 4, data=0.02)]

    _, four = points(clocked(1), clocked(4, own=own))

    assert four.losses[0].rank in (2, 3)


def test_no_rank_is_named_if_all_wait_for_varying_ranks():
    _, four = points(clocked(1), clocked(4, own=scaled(1 / 4), noise=1.0, steps=200))

    assert straggler(four) is None
    assert shares(four)["waiting"] > 0.05


seconds = st.floats(1e-4, 1.0)
own = st.fixed_dictionaries(dict.fromkeys(PHASES, seconds))


@settings(max_examples=40)
@given(st.lists(own, min_size=2, max_size=5), own, seconds, st.sampled_from([1, 2, 3.5]))
def test_the_shares_add_up_to_one_less_the_efficiency(ranks, alone, comm, grown):
    base, point = points(
        clocked(1, own=alone, steps=3),
        clocked(len(ranks), own=ranks, comm=comm, batch=64 * grown, steps=3),
    )[-2:]

    assert base.losses == ()
    assert sum(shares(point).values()) == pytest.approx(1 - point.efficiency)
    assert [loss.share for loss in point.losses] == sorted(shares(point).values(), reverse=True)


def test_phases_without_time_have_no_losses():
    _, two = points(clocked(1), clocked(2))
    without = replace(two, step_s=dict.fromkeys(two.step_s, 0.0))

    assert with_losses([points(clocked(1))[0], without])[1].losses == ()
