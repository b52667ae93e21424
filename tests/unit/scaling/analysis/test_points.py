"""Points are computed from the files of runs."""

import itertools
import math
import random
from dataclasses import replace
from statistics import fmean

import pytest

from samestep.base.errors import UsageError
from samestep.scaling.analysis.points import measured, of_ratio, of_repeats
from samestep.scaling.analysis.runs import RankFile, Run
from samestep.scaling.analysis.study import PHASES
from support.clocked_runs import OWN, clocked, concluded, scaled

STEP = sum(OWN.values())


def changed(run: Run, rank: int, change) -> Run:
    """Return `run` with other lines of one rank."""
    file = run.ranks[rank]
    ranks = list(run.ranks)
    ranks[rank] = RankFile(file.header, [change(dict(line)) for line in file.steps], file.end)
    return replace(run, ranks=ranks)


def test_the_rate_is_all_samples_divided_by_all_time():
    (point,) = measured([clocked(2, batch=64, comm=0.004)])

    assert point.samples_per_second == pytest.approx(64 / (STEP + 0.004))
    assert (point.workers, point.global_batch, point.threads, point.nodes, point.kind) == (
        2,
        64,
        1,
        1,
        "recipe",
    )
    assert point.worker_hours_per_epoch == pytest.approx(2 * 100 * (STEP + 0.004) / 3600)
    assert (point.memory_bytes, point.device_memory_bytes) == (1001, None)


def test_the_time_of_a_run_is_that_of_its_slowest_rank():
    def late(line):
        return line | {"seconds": line["seconds"] + 0.5 * (line["step"] == 24)}

    (point,) = measured([changed(clocked(2, steps=20), 1, late)])

    assert point.samples_per_second == pytest.approx(20 * 64 / (20 * STEP + 0.5))


def test_the_last_batch_of_an_epoch_can_be_smaller():
    def cut(line):
        return line | {"samples": 5 if line["step"] == 24 else line["samples"]}

    (point,) = measured([changed(clocked(1, steps=20), 0, cut)])

    assert point.global_batch == 64
    assert point.samples_per_second == pytest.approx((19 * 64 + 5) / (20 * STEP))


def test_most_steps_can_be_without_a_batch():
    def fourth(line):
        return line | {"samples": line["samples"] if line["step"] % 4 == 0 else 0}

    two = clocked(2, own=scaled(1 / 2))
    for rank in (0, 1):
        two = changed(two, rank, fourth)
    study = concluded([changed(clocked(1), 0, fourth), two])

    assert [point.global_batch for point in study.points] == pytest.approx([16, 16])
    assert study.points[1].efficiency == pytest.approx(1)


def test_a_step_with_an_evaluation_on_any_rank_is_not_counted():
    def evaluated(line):
        return line | {"evaluated": True, "seconds": 100.0, "other": 100.0} if line["step"] == 9 else line

    (point,) = measured([changed(clocked(2), 1, evaluated)])

    assert point.samples_per_second == pytest.approx(64 / STEP)
    assert point.step_s["other"] == pytest.approx(OWN["other"])


def test_a_step_that_a_rank_did_not_record_is_not_counted():
    run = clocked(2)
    file = run.ranks[1]
    (point,) = measured([replace(run, ranks=[run.ranks[0], RankFile(file.header, file.steps[:7], {})])])

    assert point.samples_per_second == pytest.approx(64 / STEP)
    assert point.worker_hours_per_epoch is not None  # recorded by the other rank


def test_evaluations_in_most_steps_are_counted():
    run = changed(clocked(2, steps=20), 1, lambda line: line | {"evaluated": line["step"] > 13})

    assert measured([run]) == measured([clocked(2, steps=20)])


def test_a_run_without_samples_is_refused():
    run = changed(clocked(1), 0, lambda line: line | {"samples": 0})

    with pytest.raises(UsageError, match=r"run on 1 worker .* no samples"):
        measured([run])


def test_the_reason_of_a_run_that_ended_early_is_reported():
    ranks = [RankFile(rank.header, [], {"ended": "error", "message": "no data"}) for rank in clocked(2).ranks]

    with pytest.raises(UsageError, match=r"\(no data\)"):
        measured([Run(ranks=ranks)])


def test_repeats_are_one_point_with_the_phases_of_the_median_run():
    slow, usual, fast = (dict(OWN, data=seconds) for seconds in (0.030, 0.004, 0.001))

    (point,) = measured([clocked(1, own=own) for own in (slow, fast, usual)])

    assert len(point.runs) == 3
    assert point.step_s["data"] == pytest.approx(0.004)
    assert point.samples_per_second == pytest.approx(64 / (STEP + 0.002))
    assert point.samples_per_second_low < min(point.runs)
    assert sum(point.step_s.values()) == pytest.approx(64 / point.samples_per_second)


def test_the_rate_of_two_repeats_is_that_of_the_slower():
    slow, fast = dict(OWN, data=0.030), dict(OWN, data=0.001)

    (point,) = measured([clocked(1, own=own) for own in (fast, slow)])

    assert point.samples_per_second == min(point.runs)
    assert sum(point.step_s.values()) == pytest.approx(64 / point.samples_per_second)


def test_one_repeat_has_no_interval():
    (point,) = measured([clocked(1)])

    assert point.samples_per_second_low is point.samples_per_second_high is None


def test_different_batches_are_different_points():
    points = measured(
        [clocked(2, batch=64), clocked(2, batch=128), clocked(2, batch=63), clocked(1, batch=64)]
    )

    assert [(point.workers, point.global_batch, len(point.runs)) for point in points] == [
        (2, 63.5, 2),
        (2, 128, 1),
        (1, 64, 1),
    ]


def test_a_wait_for_a_slow_rank_is_not_communication():
    (point,) = measured([clocked(4, own=[OWN, OWN, dict(OWN, data=0.012), OWN], comm=0.004)])

    assert point.exchange_s == pytest.approx(0.004)
    assert point.waiting_s == pytest.approx(0.010 * 3 / 4)
    assert point.step_s["exposed_sync"] == pytest.approx(point.exchange_s + point.waiting_s)
    assert [rank.step_s["data"] for rank in point.ranks] == pytest.approx([0.002, 0.002, 0.012, 0.002])


def test_the_rank_that_waits_can_change_from_step_to_step():
    (point,) = measured([clocked(2, noise=0.5, comm=0.004)])

    assert point.exchange_s == pytest.approx(0.004)
    assert point.waiting_s > 0.001


def test_phases_of_a_rank_add_up_to_the_step():
    (point,) = measured([clocked(3, noise=0.3, comm=0.004)])

    for rank in (point, *point.ranks):
        assert list(rank.step_s) == list(PHASES)
        assert sum(rank.step_s.values()) == pytest.approx(192 / 3 / point.samples_per_second)


def test_the_step_of_a_script_that_runs_once_is_that_of_the_rank_that_records_it():
    """It was divided by the number of workers."""
    (rank,) = clocked(1).ranks
    header = rank.header | {"size": 4, "kind": "once"}
    (point,) = measured([Run(ranks=[RankFile(header, rank.steps, rank.end)])])

    assert point.workers == 4
    assert sum(point.step_s.values()) == pytest.approx(64 / point.samples_per_second)


@pytest.mark.parametrize("hosts", [("a", "a", "a"), ("a", "b", "b")])
def test_the_time_line_is_a_step_without_gaps(hosts):
    run = clocked(3, noise=0.3, comm=0.004)
    ranks = [
        RankFile(dict(file.header, host=host), file.steps, file.end)
        for file, host in zip(run.ranks, hosts, strict=True)
    ]

    (point,) = measured([replace(run, ranks=ranks)])

    ends = [[span.end_s for span in spans if span.phase == "exposed_sync"] for spans in point.timeline]
    assert max(ends) == pytest.approx(min(ends))  # all ranks leave the communication at the same time
    for spans in point.timeline:
        assert spans[-1].phase == "optimizer"
        assert all(one.end_s == two.begin_s for one, two in itertools.pairwise(spans))
    assert min(spans[0].begin_s for spans in point.timeline) == 0


@pytest.mark.parametrize("host", ["a", "b"])
def test_ranks_leave_the_communication_together_whatever_their_clocks_are(host):
    run = clocked(2, comm=0.004)
    run = changed(run, 1, lambda line: line | {"at": line["at"] + 3})
    other = RankFile(dict(run.ranks[1].header, host=host), run.ranks[1].steps, {})

    (point,) = measured([replace(run, ranks=[run.ranks[0], other])])

    ends = [span.end_s for spans in point.timeline for span in spans if span.phase == "exposed_sync"]
    assert max(ends) == pytest.approx(min(ends))
    assert max(ends) < 1


def test_an_epoch_that_grew_with_the_workers_is_not_reported():
    def run(workers, samples):
        made = clocked(workers, kind="native")
        ranks = [
            replace(
                rank,
                steps=[{**step, "loaded": int(step["samples"])} for step in rank.steps],
                end={**rank.end, "samples_per_epoch": samples},
            )
            for rank in made.ranks
        ]
        return replace(made, ranks=ranks)

    runs = [run(1, 4096), run(2, 8192), run(4, 16384)]
    one, *several = measured(runs)
    assert one.worker_hours_per_epoch
    assert [point.worker_hours_per_epoch for point in several] == [None, None]

    padded = [run(1, 4095), run(2, 4096)]
    assert all(point.worker_hours_per_epoch for point in measured(padded))


def test_the_rate_of_one_repeat_has_no_interval():
    assert of_repeats([100.0]) is None


@pytest.mark.parametrize(("repeats", "t"), [(2, 12.706205), (3, 4.302653), (11, 2.228139), (41, 2.021075)])
def test_the_interval_is_students(repeats, t):
    rates = [math.exp(0.01 * number) for number in range(repeats)]
    logs = [math.log(rate) for rate in rates]
    mean = fmean(logs)
    error = math.sqrt(sum((one - mean) ** 2 for one in logs) / (repeats - 1) / repeats)

    low, high = of_repeats(rates)

    assert math.log(high) == pytest.approx(mean + t * error, rel=1e-3, abs=1e-5)
    assert math.log(low) == pytest.approx(mean - t * error, rel=1e-3, abs=1e-5)


def test_the_interval_contains_the_median():
    rates = [100.0] * 9 + [1000.0] * 2 + [1.0]

    low, high = of_repeats(rates)

    assert low <= 100 <= high


def drawn(draw: random.Random, rate: float, repeats: int) -> list[float]:
    return [rate * math.exp(draw.gauss(0, 0.03)) for _ in range(repeats)]


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_the_interval_contains_the_true_value_in_95_percent_of_cases(repeats):
    draw = random.Random(repeats)
    found = [of_repeats(drawn(draw, 100, repeats)) for _ in range(2000)]

    assert 0.935 < fmean(low <= 100 <= high for low, high in found) < 0.965


def test_the_interval_of_a_ratio_contains_the_true_value_too():
    draw = random.Random(7)
    held = []
    for _ in range(2000):
        one, other = drawn(draw, 300, 4), drawn(draw, 100, 4)
        typical = [math.exp(fmean(map(math.log, rates))) for rates in (one, other)]
        low, high = of_ratio(*typical, of_repeats(one), of_repeats(other))
        held.append(low <= 3 <= high)

    assert 0.935 < fmean(held) < 0.99  # it is conservative with so few repeats


def test_a_ratio_with_an_unknown_interval_has_none():
    assert of_ratio(2.0, 1.0, None, (0.9, 1.1)) is None
    assert of_ratio(2.0, 1.0, (1.9, 2.1), None) is None


def test_a_ratio_is_between_the_quotients_of_the_ends():
    low, high = of_ratio(2.0, 1.0, (1.9, 2.2), (0.9, 1.05))

    assert 1.9 / 1.05 < low < 1.9 < 2.2 < high < 2.2 / 0.9
