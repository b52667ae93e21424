"""The summary claims no more than the runs determine, and is about the best variant."""

import pytest

from samestep.studies.scaling.analysis.points import from_times, measured
from samestep.studies.scaling.analysis.study import Study, Verdict
from samestep.studies.scaling.analysis.verdict import conclude
from samestep.studies.scaling.report.page import render
from samestep.studies.scaling.report.rows import overhead
from samestep.studies.scaling.report.text import study_text
from support.clocked_runs import OWN, clocked, codes
from support.studies import study as made_up


def judged(seconds: dict[int, list[float]], bar=None) -> Verdict:
    """Return the verdict on runs with these times."""
    rows = [(workers, taken) for workers, several in seconds.items() for taken in several]
    return conclude(Study(target="times.csv", points=from_times(rows)), bar).verdict


def about(seconds: float) -> list[float]:
    return [0.99 * seconds, seconds, 1.01 * seconds]


def found(verdict: Verdict) -> tuple[str, int | None, bool]:
    return verdict.code, verdict.workers, verdict.is_certain


def test_workers_slower_than_the_baseline_are_not_worth_it_at_any_bar():
    verdict = judged({1: about(100), 2: about(120)}, 0.4)

    assert found(verdict) == ("not-worth", 2, True)
    assert "1.20 times as long" in verdict.manager
    assert "2.4 times the worker-hours" in verdict.manager
    assert [(one.is_worth, one.is_certain) for one in verdict.worth] == [(True, True), (False, True)]
    assert verdict.largest_worth == 1


def test_it_can_be_inconclusive_whether_workers_are_faster_at_all():
    verdict = judged({1: [100, 108, 92], 2: [99, 93, 105]}, 0.4)

    assert found(verdict) == ("worth", 2, False)
    assert codes(verdict, "caveat") == [("faster-undecided", (2,))]


def test_equal_speed_is_not_printed_as_a_factor():
    verdict = judged({1: about(100), 2: about(100)})
    assert "2 workers train as fast as one, at 2.0 times" in verdict.manager


@pytest.mark.parametrize("bar", [None, 0.7])
@pytest.mark.parametrize(
    "seconds",
    [
        {1: [1 / 18, 1 / 600, 1 / 3000], 2: [1 / 66579, 1 / 1300, 1 / 40]},
        {1: [100, 300, 30], 2: [70, 20, 150]},
        {1: about(100), 2: [30, 60, 120]},
    ],
    ids=["wild", "ideal", "quiet"],
)
def test_runs_that_differ_too_much_are_inconclusive(seconds, bar):
    verdict = judged(seconds, bar)
    assert verdict.code in ("inconclusive", "superlinear")
    assert verdict.workers is None
    assert not any(one.is_certain for one in verdict.worth[1:])


def test_a_wide_interval_on_one_side_of_the_bar_is_shown_by_its_ends():
    assert judged({1: about(100), 2: [60, 95, 80]}, 0.95).code == "inconclusive"

    verdict = judged({1: about(100), 4: [100, 190, 140]}, 0.7)
    assert found(verdict) == ("not-worth", 4, True)
    assert "0.32 to 1.60 times" in verdict.manager


def test_a_certain_result_for_fewer_workers_stands_beside_an_uncertain_one():
    seconds = {1: about(100), 2: about(52), 4: [20, 70, 40]}

    verdict = judged(seconds, 0.7)
    assert found(verdict) == ("worth", 2, True)
    assert ("bar-undecided", (4,)) in codes(verdict, "caveat")
    assert verdict.largest_worth == 2
    verdict = judged({**seconds, 4: [40, 140, 80]})
    assert (verdict.code, verdict.workers) == ("speedup", 2)
    assert ("speed-undecided", (4,)) in codes(verdict, "caveat")


def test_workers_can_be_worth_it_beyond_others_that_are_not():
    verdict = judged({1: about(100), 2: about(77), 4: about(31)}, 0.7)
    assert found(verdict) == ("worth", 4, True)
    assert [one.is_worth for one in verdict.worth] == [True, False, True]
    assert "with 4 workers" in verdict.manager


def test_a_speedup_far_above_the_ideal_recommends_no_number_of_workers():
    verdict = judged({1: about(100), 2: about(40)}, 0.7)

    assert found(verdict) == ("superlinear", None, False)
    assert "125 %" in verdict.manager
    assert [one.is_certain for one in verdict.worth] == [True, False]
    assert verdict.largest_worth is None
    assert codes(verdict, "baseline") == [("superlinear", (1, 2))]


def test_the_verdict_is_about_the_fastest_variant_and_names_the_others():
    runs = []
    for seed in range(3):
        for variant, comm in (("sync=ddp", 0.030), ("sync=flat", 0.002)):
            of = {"noise": 0.01, "seed": seed, "variant": variant}
            half = {name: seconds / 2 for name, seconds in OWN.items()}
            runs += [clocked(1, **of), clocked(2, own=half, comm=comm, **of)]

    study = conclude(Study(target="digits", points=measured(runs)), 0.7)
    verdict = study.verdict

    assert verdict.variant == "sync=flat"
    assert found(verdict) == ("worth", 2, True)
    assert verdict.manager.startswith("sync=flat: ")
    assert verdict.manager.endswith("; sync=ddp: 62 %.")
    assert verdict.engineer.startswith("sync=flat: 2 workers: 1.9")
    assert [one.split(": ")[0] for one in verdict.others] == ["sync=ddp"]
    assert verdict.largest_worth == 2
    tiles = render(study).split('class="tiles"')[1].split("</ul>")[0]
    assert "b: sync=flat" in tiles


def test_overhead_is_of_the_workers_of_the_summary_and_the_next_number():
    verdict = made_up(workers=(1, 2, 4, 8), bar=0.7).verdict

    assert verdict.workers == 4
    assert verdict.engineer.startswith("4 workers: 3.1x over one worker with 1 thread, 78 %. Overhead: ")
    assert " 8 workers: 4.8x over one worker with 1 thread, 60 %. Overhead: " in verdict.engineer

    enough = judged({1: about(100), 2: about(110), 4: about(112)}).engineer
    assert enough == "2 workers: 0.91x, 45 %. 4 workers: 0.89x, 22 %."


def test_inconclusive_runs_have_no_overhead_and_no_advice():
    own = [{name: seconds * slow for name, seconds in OWN.items()} for slow in (1, 3, 2)]
    runs = [clocked(1, own=one) for one in own] + [clocked(2, own=one, comm=0.05) for one in own]

    study = conclude(Study(target="digits", points=measured(runs)), 0.7)

    assert [overhead(point, most=2) for point in study.points] == ["", ""]
    assert "workers  overhead" not in study_text(study)
    assert ">overhead<" not in render(study)
    assert study.verdict.engineer.startswith(
        "2 workers: 0.79x over one worker with 1 thread, 40 % by the medians"
    )
    assert codes(study.verdict, "advice") == []
