"""Sentences: for those who pay, for those who can change something, and the yes or no."""

from dataclasses import replace

import pytest

from samestep.scaling.conclude import conclude
from samestep.scaling.notes import notes_of_runs
from samestep.scaling.study import Study
from samestep.scaling.times import from_times
from support.clocked_runs import OWN, clocked, concluded, scaled, timed


def slow_rank() -> Study:
    """Return 4 workers of which rank 2 waits for data, and all for the exchange."""
    own = [scaled(1 / 4)] * 4
    own[2] = scaled(1 / 4, data=OWN["data"] / 4 + 0.0025)
    return concluded([clocked(1), clocked(4, own=own, exchange=0.0017)] * 3)


def test_the_engineer_learns_who_waits_for_what_and_what_to_try():
    assert slow_rank().verdict.engineer == (
        "4 workers: 3.4x, 85 %. Lost: 9 % waiting for data on rank 2, 6 % exposed exchange. "
        "Try another disk or host for rank 2, or --loader-workers 1 (there are no processors for more); "
        "a larger --batch-size (another training)."
    )


def test_the_manager_learns_what_it_gives_and_what_it_costs():
    assert slow_rank().verdict.manager == (
        "4 workers train 3.4 times as fast as one (an epoch in 2.82 s instead of 9.6 s), "
        "at 17 % more worker-hours for the same work."
    )


def test_how_gradients_are_exchanged_and_what_carries_them_is_told():
    exchange = {"own": scaled(1 / 2), "exchange": 0.012}
    told = concluded([clocked(1), clocked(2, sync="ddp", backend="nccl", **exchange)])

    assert told.verdict.engineer.startswith(
        "2 workers: 1.60x, 80 %. Lost: 20 % exposed exchange (ddp over nccl)."
    )
    assert [(point.sync, point.backend) for point in told.points] == [("", ""), ("ddp", "nccl")]


def test_a_slow_rank_is_told_with_its_host_where_there_are_several():
    run = clocked(2, own=[scaled(1 / 2), scaled(1 / 2, forward=0.025)])
    ranks = [
        replace(rank, header=dict(rank.header, host=host)) for rank, host in zip(run.ranks, "ab", strict=True)
    ]

    engineer = concluded([clocked(1), replace(run, ranks=ranks)]).verdict.engineer

    assert "waiting for rank 1 (b) (forward, 10 ms longer there)" in engineer
    assert "samestep doctor" in engineer


@pytest.mark.parametrize(
    ("bar", "largest", "said"),
    [
        (0.5, 8, "Probably worth it at a bar of 50 %, up to 8 workers, which train 4.3 times as fast as one"),
        (0.7, 4, "Probably worth it at a bar of 70 %, up to 4 workers, which train 3.1 times as fast as one"),
        (0.95, 1, "Probably not worth it at a bar of 95 %: 2 workers train 1.82 times as fast as one"),
        (1.5, None, "Probably not worth it at a bar of 150 %: 2 workers train 1.82 times as fast as one"),
    ],
)
def test_yes_or_no(bar, largest, said):
    verdict = timed({1: 100, 2: 55, 4: 32, 8: 23}, bar).verdict

    assert verdict.largest_worth == largest
    assert verdict.manager.startswith(said)
    assert [one.is_worth for one in verdict.worth] == [n <= (largest or 0) for n in (1, 2, 4, 8)]


def test_without_a_bar_the_knee_decides():
    verdict = timed({1: 100, 2: 55, 4: 32, 8: 30}).verdict

    assert verdict.knee == 4
    assert verdict.manager.endswith("; beyond 4, more workers probably cost more than they bring.")
    assert timed({1: 100, 2: 80, 4: 70}).verdict.manager == (
        "Probably 1 worker is enough: 2 workers train 1.25 times as fast as one, at 60 % more worker-hours "
        "for the same work, which costs more than it brings."
    )


def test_a_large_cost_is_told_as_a_factor():
    manager = timed({1: 100, 2: 700}).verdict.manager
    assert "2 workers take 7.0 times as long as one, at 14 times the worker-hours for" in manager


def test_what_costs_nothing_more_or_even_less():
    assert timed({1: 100, 2: 50}).verdict.manager.endswith("at the same worker-hours.")
    assert timed({1: 100, 2: 45}).verdict.manager.endswith("at 10 % fewer worker-hours for the same work.")


def test_a_base_of_several_workers_is_said():
    told = timed({2: 100, 8: 30})

    assert told.verdict.manager.startswith("8 workers probably train 3.3 times as fast as 2, at 20 % more")
    assert "Speedups are against 2 workers, which count as 2x." in told.notes


def test_who_ran_once_is_told():
    assert "Run once, so without an interval: 1, 2 workers." in timed({1: 100, 2: 50}).notes
    rows = [(1, 100), (2, 50), (2, 51)]
    notes = conclude(Study(target="times.csv", points=from_times(rows))).notes
    assert "Run once, so without an interval: 1 worker." in notes


def test_one_number_of_workers_says_nothing():
    told = timed({4: 100})
    assert told.verdict.manager == "Only 4 workers measured: nothing follows for more."
    assert told.verdict.engineer == "For a speedup, measure another number of workers too."
    assert not [note for note in told.notes if "Speedups are against" in note]
    assert conclude(Study(target="x")).verdict is None


def test_more_workers_than_cores_are_no_measure():
    told = concluded([clocked(1), clocked(2, own=scaled(1 / 2), oversubscribed=True)], 0.4)

    assert told.verdict.manager.startswith(
        "Nothing follows: more than 1 worker had too few cores to themselves; measure where"
    )
    assert told.verdict.engineer == "2 workers: 2.0x, 100 %, oversubscribed."
    assert told.verdict.largest_worth == 1
    assert any(note.startswith("Oversubscribed, ") and "workers: 2." in note for note in told.notes)


def test_nothing_is_compared_with_workers_that_had_too_few_cores():
    runs = [clocked(2, oversubscribed=True), *(clocked(n, own=scaled(1 / n)) for n in (4, 8))]

    assert concluded(runs).verdict.manager.startswith(
        "Nothing follows: 2 workers, whom all others are compared with"
    )


@pytest.mark.parametrize(
    ("own", "header", "said"),
    [
        (OWN, {}, ""),
        (
            dict(OWN, data=0.0769),
            {},
            "The step at 1 worker waits 45 % of its time for data: speed that up first",
        ),
        (
            OWN,
            {"threads": 1, "processors": 8},
            "The one worker computes with 1 thread and has 8 processors: with --threads 8 it may be faster",
        ),
        (OWN, {"threads": 1, "processors": 8, "device": "cuda"}, ""),
        (dict(OWN, other=0.05), {}, "The step at 1 worker spends 34 % of its time beside data, forward"),
    ],
)
def test_a_slow_serial_step_flatters(own, header, said):
    serial = concluded([clocked(1, own=own, **header), clocked(2, own=own)]).verdict.serial

    assert serial.startswith(said)
    assert bool(serial) == bool(said)


@pytest.mark.parametrize(
    ("workers", "nodes", "processors", "said"),
    [
        (2, 1, 2, ""),
        (2, 1, 3, ""),
        (2, 1, 4, "Each of 2 workers computes with 1 thread and has 2 processors: with --threads 2 it"),
        (4, 2, 4, "Each of 4 workers computes with 1 thread and has 2 processors: with --threads 2 it"),
    ],
)
def test_processors_that_the_workers_of_a_node_share_are_not_idle(workers, nodes, processors, said):
    serial = concluded([clocked(workers, processors=processors, nodes=nodes)]).verdict.serial

    assert serial.startswith(said)
    assert bool(serial) == bool(said)


def test_more_than_the_ideal_is_rather_a_disturbed_base():
    told = timed({1: 100, 2: 20})

    assert told.verdict.serial == (
        "2 workers came to 250 % of the ideal, as where something runs beside 1 worker, or only a share fits "
        "into the caches. Measure again, several times and with other --threads."
    )
    assert timed({1: 100, 2: 48}).verdict.serial == ""

    runs = [clocked(1, own=scaled(3), threads=2), clocked(2, own=scaled(1 / 2))]
    verdict = concluded(runs).verdict
    assert "beside 1 worker, its 2 threads hamper each other, or only" in verdict.serial
    assert "Gained: more than a step in forward and backward, 6 %" in verdict.engineer


def test_a_step_that_is_too_small_is_told_so():
    tiny, shared = scaled(1 / 500), scaled(1 / 1000)
    engineer = concluded([clocked(1, own=tiny), clocked(2, own=shared, exchange=0.001)]).verdict.engineer
    assert "A step of 192 us is too small to share out: stay with 1 worker, or try a larger batch" in engineer
    assert "Try" not in engineer

    gained = concluded([clocked(1, own=scaled(1 / 20)), clocked(2, own=scaled(1 / 40))]).verdict.engineer
    assert "too small" not in gained
    long = concluded([clocked(1), clocked(2, own=scaled(1 / 2), exchange=0.1)]).verdict.engineer
    assert "too small" not in long


def test_workers_that_share_the_cores_of_one_are_told_so():
    runs = [clocked(1, threads=8), clocked(2, own=scaled(1 / 2, backward=0.05), threads=4)]

    told = concluded(runs)

    assert "slower forward and backward" in told.verdict.engineer
    assert "--threads 4 at every number of workers" in told.verdict.engineer
    assert any(
        "Threads of each worker differ, 8 at 1 worker, 4 at 2 workers: more" in note for note in told.notes
    )


def test_an_exchange_within_backward_is_told_so():
    own = scaled(1 / 2, backward=0.05)

    assert (
        "forward and backward (the exchange within)"
        in concluded([clocked(1), clocked(2, own=own)]).verdict.engineer
    )


def test_what_was_gained_is_told():
    runs = [clocked(1), clocked(2, own=scaled(1 / 2, backward=0.02), exchange=0.005)]

    engineer = concluded(runs).verdict.engineer

    assert engineer.startswith("2 workers: 2.2x, 112 %. Lost: 12 % exposed exchange. Gained: 23 % in forward")


def test_other_modes_are_told_too():
    told = concluded([clocked(1), clocked(2, own=scaled(1 / 2)), clocked(2, batch=128, exchange=0.004)])

    assert told.verdict.others[0].startswith("weak: 2 workers: 1.92x, 96 %. Lost: 4 % exposed exchange.")
    assert any(note.startswith("The batch grew with the workers (64 at 1 worker, 128") for note in told.notes)


def test_what_is_open_of_other_modes_is_told_of_these():
    slow = [scaled(factor) for factor in (1.3, 1.4, 1.5)]
    runs = (
        [clocked(1)] * 3
        + [clocked(2, own=scaled(1 / 2))] * 3
        + [clocked(2, batch=128, own=own) for own in slow]
    )

    told = concluded(runs).verdict

    assert "told" not in told.engineer
    (weak,) = told.others
    assert "Whether 2 workers bring more than they cost cannot be told: they are " in weak


def test_a_batch_that_did_neither_is_noted():
    notes = concluded([clocked(1), clocked(2, batch=96)]).notes
    large = concluded([clocked(1, batch=2**20), clocked(2, batch=2**21)]).notes

    assert any(
        note.startswith("The batch neither stayed nor grew with the workers (64 at 1") for note in notes
    )
    assert any("(1,048,576 at 1 worker, 2,097,152 at 2 workers)" in note for note in large)


def test_an_interval_that_says_nothing_is_not_told_by_its_ends():
    rows = [(1, 100), (1, 300), (2, 70), (2, 200)]
    verdict = conclude(Study(target="times.csv", points=from_times(rows)), 0.9).verdict

    assert verdict.manager.startswith(
        "Whether more than 1 worker is worth it at a bar of 90 % cannot be told"
    )
    assert "Whether 2 workers reach 90 % cannot be told: their runs differ too much" in verdict.engineer

    own = (scaled(1), scaled(3))
    runs = [
        clocked(1, own=own[number], variant=name, noise=1e-6, seed=ord(name))
        for name in "ab"
        for number in (0, 1)
    ]
    (said,) = concluded(runs).verdict.comparisons
    assert said.startswith("1 worker: no difference between b and a can be told: their runs differ too much")


def test_to_conclude_again_changes_nothing_but_the_bar():
    told = concluded(
        [clocked(1), clocked(2), clocked(2, own=scaled(1 / 2)), clocked(4, own=scaled(1 / 4))], 0.7
    )

    assert conclude(told, 0.7) == told
    assert replace(conclude(told, 0.9), verdict=None) == replace(told, verdict=None)


def test_runs_on_other_machines_are_noticed():
    runs = [clocked(1), clocked(2, host="b"), clocked(2, torch="2.8.0")]
    steps = [line | ({"evaluated": True} if line["step"] == 7 else {}) for line in runs[0].ranks[0].steps]
    runs[0] = replace(runs[0], ranks=[replace(runs[0].ranks[0], steps=steps)])

    assert notes_of_runs(runs) == (
        "Some runs have no machine in common (a; b): what differs between these is in the speedups too.",
        "The runs had several versions of torch: 2.8.0, 2.9.0.",
        "Steps left out, since there was an evaluation in them: 1.",
    )
    assert notes_of_runs([clocked(1), clocked(2)]) == ()
