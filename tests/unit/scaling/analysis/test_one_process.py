"""A speedup on CPUs is over the faster of one worker like each, and one process with all of their cores."""

from dataclasses import replace

import pytest

from samestep.scaling.analysis.points import measured
from samestep.scaling.analysis.study import Study, read_study, write_study
from samestep.scaling.analysis.verdict import conclude
from samestep.scaling.report.page import charts, render
from samestep.scaling.report.tables import results, study_text
from support.clocked_runs import OWN, clocked, scaled

SPREAD = (0.99, 1.0, 1.01)


def process(cores_of, time, **more):
    """Return a run of one worker on `cores_of` cores, whose step takes `time` times that on one core."""
    header = {"threads": cores_of, "processors": 4} | more
    return replace(clocked(1, own=scaled(time), **header), cores_of=cores_of)


def study_of(processes, workers, *, bar=None, spread=SPREAD, **more):
    """Return the study of times of a step by cores and by workers, relative to one worker with one thread."""
    more = {"processors": 4} | more
    runs = []
    for noise in spread:
        runs += [clocked(1, own=scaled(noise), **more)]
        runs += [process(cores, time * noise, **more) for cores, time in processes.items()]
        runs += [clocked(n, own=scaled(time / noise), **more) for n, time in workers.items()]
    points, alone = measured(runs), measured(runs, one_process=True)
    return conclude(Study(target="t.py", points=points, one_process=alone), bar)


def speedups(points):
    return [(one.workers * one.cores_of, round(one.speedup, 2), one.baseline_cores_of) for one in points]


def test_a_speedup_is_over_the_faster_one_worker_on_as_many_cores():
    study = study_of({2: 0.8, 4: 1.25}, {2: 0.5, 4: 0.4})

    # Four cores slow one process down: it is faster on two of them.
    assert speedups(study.points) == [(1, 1.0, 1), (2, 1.6, 2), (4, 2.0, 2)]
    assert speedups(study.one_process) == [(2, 1.0, 2), (4, 0.64, 2)]
    slow = study_of({2: 1.25}, {2: 0.5})
    assert speedups(slow.points) == [(1, 1.0, 1), (2, 2.0, 1)]
    assert speedups(slow.one_process) == [(2, 0.8, 1)]


def test_efficiency_and_overhead_are_against_one_worker_like_each():
    with_process, without = study_of({2: 0.8}, {2: 0.6, 4: 0.4}), study_of({}, {2: 0.6, 4: 0.4})

    assert [one.efficiency for one in with_process.points] == [one.efficiency for one in without.points]
    assert [one.losses for one in with_process.points] == [one.losses for one in without.points]
    assert with_process.points[1].speedup < without.points[1].speedup
    assert with_process.one_process[0].efficiency == pytest.approx(1 / 0.8 / 2)


def test_the_interval_is_that_of_the_ratio_to_the_process():
    two = study_of({2: 0.8}, {2: 0.5}).points[1]

    assert two.speedup_low < two.speedup < two.speedup_high
    assert two.speedup_high < two.efficiency * two.workers
    assert study_of({2: 0.8}, {2: 0.5}, spread=(1,)).points[1].speedup_low is None


@pytest.mark.parametrize("bar", [None, 0.7])
@pytest.mark.parametrize(
    ("process_s", "workers_s", "code", "is_certain"),
    [
        (0.5, 0.55, "threads-as-fast", True),
        (0.55, 0.54, "threads-as-fast", False),  # 2 % faster, and perhaps 5 %
        (0.9, 0.55, "", True),
        (1.3, 0.55, "", True),
    ],
)
def test_one_process_that_is_as_fast_comes_first(process_s, workers_s, code, is_certain, bar):
    verdict = study_of({2: process_s}, {2: workers_s}, bar=bar).verdict

    assert verdict.code == (code or ("worth" if bar else "speedup"))
    assert verdict.is_certain == is_certain
    assert verdict.workers == 2
    assert verdict.largest_worth == (None if bar is None else 1 if code else 2)


def test_the_fastest_process_is_compared_with_the_fastest_workers():
    verdict = study_of({2: 0.9, 4: 0.3}, {2: 0.5, 4: 0.35}, bar=0.7).verdict

    assert (verdict.code, verdict.workers, verdict.largest_worth) == ("threads-as-fast", 4, 1)


def test_workers_that_are_no_faster_than_a_process_on_their_cores_are_not_worth_it():
    # Two workers are slower than one process on two cores, and four are faster than any process.
    verdict = study_of({2: 0.5, 4: 0.5}, {2: 0.55, 4: 0.3}, bar=0.7).verdict

    assert [(one.workers, one.is_worth) for one in verdict.worth] == [(1, True), (2, False), (4, True)]
    assert (verdict.code, verdict.workers, verdict.largest_worth) == ("worth", 4, 4)


def test_one_worker_that_is_faster_than_all_is_enough():
    assert study_of({2: 1.2}, {2: 1.5}).verdict.code == "baseline-enough"


def test_workers_on_several_nodes_are_not_compared_with_a_process_on_all_cores():
    runs = [clocked(1, own=scaled(1), nodes=1), process(2, 0.5)]
    runs += [clocked(n, own=scaled(0.5), nodes=nodes) for n, nodes in ((2, 1), (4, 2))]
    study = conclude(Study(target="x", points=measured(runs), one_process=measured(runs, one_process=True)))

    assert study.verdict.code != "threads-as-fast"
    assert speedups(study.points) == [(1, 1.0, 1), (2, 1.0, 2), (4, 1.0, 2)]


def test_runs_that_differ_too_much_are_inconclusive():
    study = study_of({2: 0.5}, {2: 0.5}, spread=(0.4, 1.0, 2.5), bar=0.7)

    assert (study.verdict.code, study.verdict.largest_worth) == ("inconclusive", None)


def verdict_on(process_rates, worker_rates, bar=None):
    """Return the verdict on rates of one process with two threads, and of two workers with one."""

    def own(rate):
        return scaled(64 / rate / sum(OWN.values()))

    runs = [clocked(1, own=own(rate)) for rate in (31_000, 30_000)]
    runs += [replace(clocked(1, own=own(rate), threads=2), cores_of=2) for rate in process_rates]
    runs += [clocked(2, own=own(rate)) for rate in worker_rates]
    points, alone = measured(runs), measured(runs, one_process=True)
    return conclude(Study(target="t.py", points=points, one_process=alone), bar).verdict


@pytest.mark.parametrize("bar", [None, 0.7])
def test_a_process_that_is_several_times_as_fast_in_all_runs_decides_in_spite_of_wide_intervals(bar):
    verdict = verdict_on((54_000, 36_000), (5_800, 3_900), bar)

    assert (verdict.code, verdict.workers, verdict.is_certain) == ("threads-as-fast", 2, True)
    assert verdict.largest_worth == (None if bar is None else 1)
    assert not any(one.is_worth for one in verdict.worth[1:])
    assert all(one.is_certain for one in verdict.worth)
    assert "6.21x" in verdict.sentence  # 36,000 / 5,800


@pytest.mark.parametrize(
    ("process_rates", "worker_rates"),
    [
        ((54_000, 36_000), (40_000, 26_000)),  # the runs overlap
        ((54_000, 36_000), (18_000, 12_000)),  # less than a factor of three between them
        ((54_000, 36_000), (5_800, 580)),  # the workers' runs differ by more than that from each other
    ],
)
@pytest.mark.parametrize("bar", [None, 0.7])
def test_runs_that_a_repeat_can_reverse_are_inconclusive(process_rates, worker_rates, bar):
    verdict = verdict_on(process_rates, worker_rates, bar)

    assert (verdict.code, verdict.workers, verdict.is_certain) == ("inconclusive", None, False)


def test_it_is_not_certain_if_the_workers_can_be_as_fast_as_the_process():
    close = study_of({2: 0.55}, {2: 0.515}, spread=(0.98, 1.0, 1.02))
    assert not close.verdict.is_certain
    with_bar = study_of({2: 0.55}, {2: 0.515}, spread=(0.98, 1.0, 1.02), bar=0.7)
    assert not with_bar.verdict.is_certain


def test_accelerators_and_other_variants_have_their_own_baseline():
    assert speedups(study_of({2: 0.8}, {2: 0.5}, device="cuda").points) == [(1, 1.0, 1), (2, 2.0, 1)]
    runs = [clocked(n, own=scaled(1 / n), variant=name) for n in (1, 2) for name in "ab"]
    runs += [replace(process(2, 0.8), variant="b")]
    study = conclude(Study(target="x", points=measured(runs), one_process=measured(runs, one_process=True)))
    assert [(one.variant, one.workers, one.baseline_cores_of) for one in study.points] == [
        ("a", 1, 1),
        ("a", 2, 1),
        ("b", 1, 1),
        ("b", 2, 2),
    ]


def test_a_study_is_the_same_after_it_is_written_read_and_concluded_again(tmp_path):
    study = study_of({2: 0.8, 4: 0.7}, {2: 0.5, 4: 0.3}, bar=0.7)
    write_study(tmp_path / "study.json", study)

    assert read_study(tmp_path) == study
    assert conclude(study, 0.7) == study


def test_one_process_has_a_row_a_bar_a_line_in_the_chart_and_a_row_of_the_page():
    study = study_of({2: 0.8}, {2: 0.5})
    names, rows = results(study)
    heads = ("workers", "threads", "speedup over 1 process with all 2 cores", "over 1 worker with 1 thread")
    at = [names.index(name) for name in heads]

    assert [[row[k].split(" ")[0] for k in at] for row in rows] == [
        ["1", "1", "0.80x", "1.00x"],
        ["1", "2", "1.00x", "1.25x"],
        ["2", "1", "1.60x", "2.00x"],
    ]
    (bar,) = [line for line in study_text(study).splitlines() if "1.25x of 2" in line]
    assert bar.split("  ")[0].strip() == "1 with 2 threads"
    chart = next(one for one in charts(study) if one.title == "Speedup")
    assert [[(one.x, round(one.y, 2)) for one in line] for line in chart.lines.values()] == [
        [(1, 1.0), (2, 2.0)],
        [(1, 1.0), (2, 1.25)],
    ]
    assert "1 process with 2 threads" in render(study)


def test_the_columns_of_speedups_state_what_these_are_over():
    def heads(study):
        return [name for name in results(study)[0] if "over " in name]

    assert heads(study_of({2: 0.8, 4: 0.5}, {2: 0.5, 4: 0.3})) == [
        "speedup over 1 process with all 4 cores",
        "over 1 worker with 1 thread",
    ]
    on_two_nodes = study_of({2: 0.8}, {2: 0.5}, nodes=2)
    assert heads(on_two_nodes)[0] == "speedup over 1 process with all 2 cores of a node"
    assert heads(study_of({}, {2: 0.5})) == ["speedup over 1 worker with 1 thread"]
    assert "speedup" in results(study_of({}, {2: 0.5}, device="cuda"))[0]


def test_a_study_without_it_has_no_further_columns():
    names, _ = results(study_of({}, {2: 0.5}))

    assert "threads" not in names
    assert sum("over" in name for name in names if name != "overhead") == 1
