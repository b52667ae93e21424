"""The conclusions of a study: summary, advice and notes."""

from dataclasses import replace

import pytest

from samestep.studies.scaling.analysis.notes import notes_of_runs
from samestep.studies.scaling.analysis.points import from_times
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.analysis.verdict import conclude
from support.clocked_runs import OWN, clocked, codes, concluded, scaled, timed


def note_codes(study: Study) -> set[str]:
    return {code for code, _ in codes(study, "note")}


def test_a_straggler_and_communication_have_their_overhead_and_advice():
    own = [scaled(1 / 4)] * 4
    own[2] = scaled(1 / 4, data=OWN["data"] / 4 + 0.0025)
    study = concluded([clocked(1), clocked(4, own=own, comm=0.0017)] * 3)
    verdict = study.verdict

    assert (verdict.code, verdict.workers) == ("speedup", 4)
    assert [(loss.cause, loss.rank) for loss in study.points[1].losses[:2]] == [
        ("straggler", 2),
        ("exchange", None),
    ]
    assert codes(verdict, "advice") == [("other-disk", (4,)), ("larger-batch", (4,))]
    for value in ("3.4x", "85 %", "9 %", "rank 2", "6 %", "--loader-workers 1", "--batch-size"):
        assert value in verdict.engineer
    for value in ("3.4 times", "2.82 s", "9.6 s", "17 % more"):
        assert value in verdict.manager


def test_sync_and_backend_are_shown_with_communication():
    comm = {"own": scaled(1 / 2), "comm": 0.012}
    study = concluded([clocked(1), clocked(2, sync="ddp", backend="nccl", **comm)])

    assert "20 % exposed communication (ddp over nccl)" in study.verdict.engineer
    assert [(point.sync, point.backend) for point in study.points] == [("", ""), ("ddp", "nccl")]


def test_a_straggler_is_named_with_its_host_if_there_are_several():
    run = clocked(2, own=[scaled(1 / 2), scaled(1 / 2, forward=0.025)])
    ranks = [
        replace(rank, header=dict(rank.header, host=host)) for rank, host in zip(run.ranks, "ab", strict=True)
    ]

    verdict = concluded([clocked(1), replace(run, ranks=ranks)]).verdict

    assert "rank 1 (b) (forward, 10 ms longer" in verdict.engineer
    assert ("doctor", (2,)) in codes(verdict, "advice")


@pytest.mark.parametrize(
    ("bar", "largest", "code", "workers", "factor"),
    [
        (0.5, 8, "worth", 8, "4.3 times"),
        (0.7, 4, "worth", 4, "3.1 times"),
        (0.95, 1, "not-worth", 2, "1.82 times"),
        (1.5, None, "not-worth", 2, "1.82 times"),
    ],
)
def test_a_bar_decides_the_summary(bar, largest, code, workers, factor):
    verdict = timed({1: 100, 2: 55, 4: 32, 8: 23}, bar).verdict

    assert verdict.largest_worth == largest
    assert (verdict.code, verdict.workers, verdict.is_certain) == (code, workers, False)
    assert factor in verdict.manager
    assert [one.is_worth for one in verdict.worth] == [n <= (largest or 0) for n in (1, 2, 4, 8)]


def test_the_knee_decides_the_summary_without_a_bar():
    verdict = timed({1: 100, 2: 55, 4: 32, 8: 30}).verdict
    assert (verdict.knee, verdict.code, verdict.workers) == (4, "speedup", 4)

    verdict = timed({1: 100, 2: 80, 4: 70}).verdict
    assert (verdict.code, verdict.workers, verdict.is_certain) == ("baseline-enough", 2, False)
    assert "1.25 times" in verdict.manager
    assert "60 % more" in verdict.manager


@pytest.mark.parametrize(
    ("seconds", "value"),
    [(700, "14 times the worker-hours"), (50, "the same worker-hours"), (45, "10 % fewer worker-hours")],
)
def test_cost_is_a_factor_or_a_percentage(seconds, value):
    assert value in timed({1: 100, 2: seconds}).verdict.manager


def test_a_baseline_of_several_workers_is_noted():
    study = timed({2: 100, 8: 30})

    assert (study.verdict.code, study.verdict.workers, study.verdict.is_certain) == ("speedup", 8, False)
    assert "3.3 times as fast as 2" in study.verdict.manager
    assert ("baseline-of-several", (2,)) in codes(study, "note")


def test_numbers_of_workers_that_ran_once_are_noted():
    assert ("single-runs", (1, 2)) in codes(timed({1: 100, 2: 50}), "note")
    rows = [(1, 100), (2, 50), (2, 51)]
    study = conclude(Study(target="times.csv", points=from_times(rows)))
    assert ("single-runs", (1,)) in codes(study, "note")


def test_one_number_of_workers_has_no_conclusion():
    study = timed({4: 100})
    assert (study.verdict.code, study.verdict.workers) == ("single-point", None)
    assert "baseline-of-several" not in note_codes(study)
    assert conclude(Study(target="x")).verdict is None


def test_oversubscribed_points_have_no_conclusion():
    study = concluded([clocked(1), clocked(2, own=scaled(1 / 2), oversubscribed=True)], 0.4)

    assert (study.verdict.code, study.verdict.workers) == ("all-oversubscribed", None)
    assert study.verdict.largest_worth == 1
    assert ("oversubscribed", (2,)) in codes(study, "note")


def test_an_oversubscribed_baseline_has_no_conclusion():
    runs = [clocked(2, oversubscribed=True), *(clocked(n, own=scaled(1 / n)) for n in (4, 8))]

    assert concluded(runs).verdict.code == "baseline-oversubscribed"


@pytest.mark.parametrize(
    ("own", "header", "found", "value"),
    [
        (OWN, {}, [], ""),
        (dict(OWN, data=0.0769), {}, ["slow-phase"], "45 %"),
        (OWN, {"threads": 1, "processors": 8}, ["idle-cores"], "--threads 8"),
        (OWN, {"threads": 1, "processors": 8, "device": "cuda"}, [], ""),
        (dict(OWN, other=0.05), {}, ["slow-phase"], "34 %"),
    ],
)
def test_a_slow_baseline_is_reported(own, header, found, value):
    verdict = concluded([clocked(1, own=own, **header), clocked(2, own=own)]).verdict

    assert codes(verdict, "baseline") == [(code, (1,)) for code in found]
    assert value in verdict.serial
    assert bool(verdict.serial) == bool(found)


@pytest.mark.parametrize(
    ("workers", "nodes", "processors", "is_idle"),
    [(2, 1, 2, False), (2, 1, 3, False), (2, 1, 4, True), (4, 2, 4, True)],
)
def test_cores_that_the_workers_of_a_node_share_are_not_idle(workers, nodes, processors, is_idle):
    verdict = concluded([clocked(workers, processors=processors, nodes=nodes)]).verdict

    assert codes(verdict, "baseline") == [("idle-cores", (workers,))] * is_idle
    assert ("--threads 2" in verdict.serial) == is_idle


def test_more_than_ideal_means_a_disturbed_baseline():
    verdict = timed({1: 100, 2: 20}).verdict
    assert codes(verdict, "baseline") == [("superlinear", (1, 2))]
    assert "250 %" in verdict.serial
    assert codes(timed({1: 100, 2: 48}).verdict, "baseline") == []

    runs = [clocked(1, own=scaled(3), threads=2), clocked(2, own=scaled(1 / 2))]
    verdict = concluded(runs).verdict
    assert "2 threads" in verdict.serial
    assert "Gained: more than a step in forward and backward, 6 %" in verdict.engineer


def test_a_step_can_be_too_small_to_be_split():
    tiny, shard = scaled(1 / 500), scaled(1 / 1000)
    verdict = concluded([clocked(1, own=tiny), clocked(2, own=shard, comm=0.001)]).verdict
    assert [code for code, _ in codes(verdict, "advice")] == ["stay-at-baseline", "larger-batch"]
    assert "192 us" in verdict.engineer

    gained = concluded([clocked(1, own=scaled(1 / 20)), clocked(2, own=scaled(1 / 40))]).verdict
    long = concluded([clocked(1), clocked(2, own=scaled(1 / 2), comm=0.1)]).verdict
    for verdict in (gained, long):
        assert "stay-at-baseline" not in [code for code, _ in codes(verdict, "advice")]


def test_workers_that_share_the_cores_of_the_baseline_need_the_same_threads():
    runs = [clocked(1, threads=8), clocked(2, own=scaled(1 / 2, backward=0.05), threads=4)]

    study = concluded(runs)

    assert study.points[1].losses[0].cause == "compute"
    assert ("same-threads", (2,)) in codes(study.verdict, "advice")
    assert "--threads 4" in study.verdict.engineer
    assert ("threads-differ", (1, 2)) in codes(study, "note")


def test_communication_that_backward_includes_is_noted():
    study = concluded([clocked(1), clocked(2, own=scaled(1 / 2, backward=0.05))])

    assert ("communication-hidden", (2,)) in codes(study, "note")
    assert "(includes communication)" in study.verdict.engineer


def test_gains_are_shown_beside_overhead():
    runs = [clocked(1), clocked(2, own=scaled(1 / 2, backward=0.02), comm=0.005)]

    engineer = concluded(runs).verdict.engineer

    assert (
        engineer.index("112 %") < engineer.index("12 % exposed") < engineer.index("Gained: 23 % in forward")
    )


def test_less_waiting_for_a_straggler_than_at_the_baseline_is_a_gain():
    two = [scaled(1 / 2), scaled(1 / 2, forward=0.1)]
    four = [scaled(1 / 4)] * 3 + [scaled(1 / 4, forward=0.012)]

    engineer = concluded([clocked(2, own=two), clocked(4, own=four)]).verdict.engineer

    assert " in waiting for one rank" in engineer.partition("Gained: ")[2]


def test_other_modes_have_their_overhead_and_notes():
    runs = [clocked(1), clocked(2, own=scaled(1 / 2)), clocked(2, batch=128, comm=0.004)]
    study = concluded(runs)
    large = concluded([clocked(1, batch=2**20), clocked(2, batch=2**21)])

    assert study.verdict.others[0].startswith(
        "weak: 2 workers: 1.92x over one worker with 1 thread, 96 %. Overhead: 4 %"
    )
    assert "batch-grew" in note_codes(study)
    assert any("(1,048,576 at 1 worker, 2,097,152 at 2 workers)" in note for note in large.notes)


def test_caveats_of_another_mode_are_of_that_mode():
    slow = [scaled(factor) for factor in (1.3, 1.4, 1.5)]
    runs = (
        [clocked(1)] * 3
        + [clocked(2, own=scaled(1 / 2))] * 3
        + [clocked(2, batch=128, own=own) for own in slow]
    )

    verdict = concluded(runs).verdict

    (caveat,) = [one for one in verdict.findings if one.kind == "caveat"]
    assert (caveat.code, caveat.mode, caveat.workers) == ("gain-undecided", "weak", (2, 1))
    assert caveat.words in verdict.others[0]
    assert caveat.words not in verdict.engineer


def test_a_batch_in_neither_mode_is_noted():
    assert "batch-mixed" in note_codes(concluded([clocked(1), clocked(2, batch=96)]))


def test_an_interval_that_is_too_wide_is_inconclusive():
    rows = [(1, 100), (1, 300), (2, 70), (2, 200)]
    verdict = conclude(Study(target="times.csv", points=from_times(rows)), 0.9).verdict

    assert (verdict.code, verdict.workers) == ("inconclusive", None)
    assert codes(verdict, "caveat") == [("bar-undecided", (2,))]

    own = (scaled(1), scaled(3))
    runs = [
        clocked(1, own=own[number], variant=name, noise=1e-6, seed=ord(name))
        for name in "ab"
        for number in (0, 1)
    ]
    assert codes(concluded(runs).verdict, "comparison") == [("inconclusive", (1,))]


def test_conclude_can_be_repeated_with_another_bar():
    study = concluded(
        [clocked(1), clocked(2), clocked(2, own=scaled(1 / 2)), clocked(4, own=scaled(1 / 4))], 0.7
    )

    assert conclude(study, 0.7) == study
    assert replace(conclude(study, 0.9), verdict=None) == replace(study, verdict=None)


def test_runs_on_other_machines_and_skipped_steps_are_noted():
    runs = [clocked(1), clocked(2, host="b"), clocked(2, torch="2.8.0")]
    steps = [line | ({"evaluated": True} if line["step"] == 7 else {}) for line in runs[0].ranks[0].steps]
    runs[0] = replace(runs[0], ranks=[replace(runs[0].ranks[0], steps=steps)])

    found = list(notes_of_runs(runs))

    assert [one.code for one in found] == ["no-common-host", "mixed-runs", "evaluations-skipped"]
    assert "(a; b)" in found[0].words
    assert "2.8.0, 2.9.0" in found[1].words
    assert list(notes_of_runs([clocked(1), clocked(2)])) == []
