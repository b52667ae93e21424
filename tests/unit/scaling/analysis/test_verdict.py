"""The verdict of a study: its code, its workers, and whether the intervals decide it."""

from dataclasses import replace

import pytest

from samestep.scaling.analysis.points import from_times, measured
from samestep.scaling.analysis.study import Study, Verdict
from samestep.scaling.analysis.verdict import NO_CONCLUSIONS, SENTENCES, UNCERTAIN, conclude
from samestep.scaling.report.page import render
from samestep.scaling.report.tables import overhead, study_text
from support.clocked_runs import OWN, clocked, concluded, scaled, timed


def judged(seconds: dict[int, list[float]], bar=None) -> Verdict:
    """Return the verdict on runs with these times."""
    rows = [(workers, taken) for workers, several in seconds.items() for taken in several]
    return conclude(Study(target="times.csv", points=from_times(rows)), bar).verdict


def rates(of: dict[int, list[float]], bar=None) -> Verdict:
    """Return the verdict on runs with these rates."""
    return judged({workers: [1 / rate for rate in several] for workers, several in of.items()}, bar)


def about(seconds: float) -> list[float]:
    return [0.99 * seconds, seconds, 1.01 * seconds]


def found(verdict: Verdict) -> tuple[str, int | None, bool]:
    return verdict.code, verdict.workers, verdict.is_certain


def test_a_sentence_has_speedup_interval_and_efficiency():
    sentence = judged({1: about(100), 2: about(55)}, 0.7).sentence

    assert all(text in sentence for text in ("2 workers", "1.82x (1.7", "91 %", "70 %"))
    assert set(NO_CONCLUSIONS) <= set(SENTENCES)


def test_a_conclusion_that_is_not_certain_needs_more_repeats():
    assert UNCERTAIN in timed({1: 100, 2: 55}).verdict.sentence
    assert UNCERTAIN not in judged({1: about(100), 2: about(55)}).sentence
    assert UNCERTAIN not in timed({1: 100}).verdict.sentence


@pytest.mark.parametrize(
    ("bar", "largest", "code", "workers"),
    [(0.5, 8, "worth", 8), (0.7, 4, "worth", 4), (0.95, 1, "not-worth", 2), (1.5, None, "not-worth", 2)],
)
def test_a_bar_decides(bar, largest, code, workers):
    verdict = timed({1: 100, 2: 55, 4: 32, 8: 23}, bar).verdict

    assert verdict.largest_worth == largest
    assert found(verdict) == (code, workers, False)
    assert [one.is_worth for one in verdict.worth] == [n <= (largest or 0) for n in (1, 2, 4, 8)]


@pytest.mark.parametrize(("workers", "seconds", "bar"), [(8, (396, 55), 0.9), (4, (80, 25), 0.8)])
def test_an_efficiency_of_exactly_the_bar_reaches_it(workers, seconds, bar):
    """Their quotient is rounded to less than the bar."""
    assert timed({1: seconds[0], workers: seconds[1]}, bar).verdict.largest_worth == workers


def test_the_knee_decides_without_a_bar():
    verdict = timed({1: 100, 2: 55, 4: 32, 8: 30}).verdict
    assert (verdict.knee, *found(verdict)) == (4, "knee", 4, False)
    assert found(timed({1: 100, 2: 80, 4: 70}).verdict) == ("baseline-enough", 2, False)
    assert found(timed({2: 100, 8: 30}).verdict) == ("speedup", 8, False)


def test_one_number_of_workers_has_no_conclusion():
    assert found(timed({4: 100}).verdict) == ("single-point", None, False)
    assert conclude(Study(target="x")).verdict is None


def test_oversubscribed_points_have_no_conclusion():
    study = concluded([clocked(1), clocked(2, own=scaled(1 / 2), oversubscribed=True)], 0.4)
    assert (study.verdict.code, study.verdict.workers) == ("all-oversubscribed", None)
    assert study.verdict.largest_worth == 1

    runs = [clocked(2, oversubscribed=True), *(clocked(n, own=scaled(1 / n)) for n in (4, 8))]
    assert concluded(runs).verdict.code == "baseline-oversubscribed"


def test_workers_slower_than_the_baseline_are_not_worth_it_at_any_bar():
    verdict = judged({1: about(100), 2: about(120)}, 0.4)

    assert found(verdict) == ("not-worth", 2, True)
    assert [(one.is_worth, one.is_certain) for one in verdict.worth] == [(True, True), (False, True)]
    assert verdict.largest_worth == 1


def test_it_can_be_inconclusive_whether_workers_are_faster_at_all():
    assert found(judged({1: [100, 108, 92], 2: [99, 93, 105]}, 0.4)) == ("worth", 2, False)


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


@pytest.mark.parametrize(("bar", "code"), [(None, "baseline-enough"), (0.7, "not-worth")])
def test_a_baseline_that_is_several_times_as_fast_in_all_runs_decides_in_spite_of_wide_intervals(bar, code):
    verdict = rates({1: [54_000, 36_000], 2: [5_800, 3_900]}, bar)

    assert found(verdict) == (code, 2, True)
    assert all(one.is_certain for one in verdict.worth)
    assert rates({1: [54_000, 36_000], 2: [30_000, 40_000]}, bar).code == "inconclusive"
    assert not rates({1: [54_000], 2: [5_800]}, bar).is_certain  # one run each


def test_a_wide_interval_on_one_side_of_the_bar_decides():
    assert judged({1: about(100), 2: [60, 95, 80]}, 0.95).code == "inconclusive"
    assert found(judged({1: about(100), 4: [100, 190, 140]}, 0.7)) == ("not-worth", 4, True)


def test_a_certain_result_for_fewer_workers_stands_beside_an_uncertain_one():
    seconds = {1: about(100), 2: about(52), 4: [20, 70, 40]}

    verdict = judged(seconds, 0.7)
    assert (*found(verdict), verdict.largest_worth) == ("worth", 2, True, 2)
    assert found(judged({**seconds, 4: [40, 140, 80]})) == ("speedup", 2, False)


def test_workers_can_be_worth_it_beyond_others_that_are_not():
    verdict = judged({1: about(100), 2: about(77), 4: about(31)}, 0.7)
    assert found(verdict) == ("worth", 4, True)
    assert [one.is_worth for one in verdict.worth] == [True, False, True]


def test_a_speedup_far_above_the_ideal_recommends_no_number_of_workers():
    verdict = judged({1: about(100), 2: about(40)}, 0.7)

    assert (*found(verdict), verdict.largest_worth) == ("superlinear", None, False, None)
    assert "125 %" in verdict.sentence
    assert [one.is_certain for one in verdict.worth] == [True, False]
    assert timed({1: 100, 2: 48}).verdict.code == "speedup"


def test_a_bar_within_the_interval_leaves_the_point_open():
    seconds = {1: [100, 101, 99], 2: [71, 69, 75], 4: [27, 27.1, 26.9]}
    verdict = judged(seconds, 0.7)

    assert [one.is_certain for one in verdict.worth] == [True, False, True]
    assert found(verdict) == ("worth", 4, True)
    assert found(judged({n: seconds[n] for n in (1, 2)}, 0.7)) == ("worth", 2, False)
    assert [one.is_certain for one in timed({1: 100, 2: 51}, 0.7).verdict.worth] == [True, False]


def test_a_result_that_the_runs_agree_on_is_certain():
    assert found(judged({1: [100] * 3, 2: [55] * 3})) == ("speedup", 2, True)
    assert found(judged({1: [100] * 3, 2: [55] * 3}, 0.7)) == ("worth", 2, True)
    assert found(judged({1: [100] * 3, 2: [110] * 3, 4: [112] * 3})) == ("baseline-enough", 2, True)
    assert found(timed({1: 100, 2: 110, 4: 112}).verdict) == ("baseline-enough", 2, False)


def test_a_gain_is_certain_if_the_whole_interval_brings_more_than_it_costs():
    """2 workers are 1.1 to 2.0 times as fast: from 1.41 on they bring more than they cost."""
    one = [100, 100.1, 99.9]

    assert found(rates({1: one, 2: [150, 165, 130]})) == ("speedup", 2, False)
    assert found(rates({1: one, 2: [150, 152, 148]})) == ("speedup", 2, True)


def test_a_knee_is_certain_if_all_numbers_beyond_it_cost_more_than_they_bring():
    verdict = rates({1: [100, 110, 92], 2: [155, 150, 160], 4: [200, 215, 205], 8: [280, 290, 300]})
    assert (verdict.knee, verdict.is_certain) == (2, False)

    sure = rates({1: [100, 101, 99], 2: [180, 181, 182], 4: [200, 201, 202], 8: [290, 291, 292]})
    assert (sure.knee, *found(sure)) == (2, "knee", 2, True)


def test_a_baseline_is_certainly_enough_if_all_larger_numbers_cost_more_than_they_bring():
    of = {1: [100, 101, 99], 2: [110, 111, 109]}

    assert found(rates(of)) == ("baseline-enough", 2, True)
    assert found(rates(of | {4: [150, 190, 170]})) == ("baseline-enough", 2, False)


def test_a_larger_number_that_can_reach_the_bar_leaves_the_smaller_one_certain():
    of = {1: [100, 101, 99], 2: [180, 181, 182]}

    for larger in ([270, 285, 260], [200, 201, 202]):
        assert found(rates(of | {4: larger}, 0.7)) == ("worth", 2, True)


def test_the_verdict_is_about_the_fastest_variant():
    runs = []
    for seed in range(3):
        for variant, comm in (("sync=ddp", 0.030), ("sync=flat", 0.002)):
            of = {"noise": 0.01, "seed": seed, "variant": variant}
            runs += [clocked(1, **of), clocked(2, own=scaled(1 / 2), comm=comm, **of)]

    study = conclude(Study(target="digits", points=measured(runs)), 0.7)

    assert (study.verdict.variant, study.verdict.largest_worth) == ("sync=flat", 2)
    assert found(study.verdict) == ("worth", 2, True)
    assert all("sync=flat" in line for line in study_text(study).splitlines() if "Worth it" in line)


def test_a_straggler_and_communication_have_their_overhead():
    own = [scaled(1 / 4)] * 4
    own[2] = scaled(1 / 4, data=OWN["data"] / 4 + 0.0025)
    study = concluded([clocked(1), clocked(4, own=own, comm=0.0017)] * 3)

    assert [(loss.cause, loss.rank) for loss in study.points[1].losses[:2]] == [
        ("straggler", 2),
        ("exchange", None),
    ]
    assert all(text in overhead(study.points[1]) for text in ("rank 2", "9 %", "6 %"))


def test_inconclusive_runs_have_no_overhead():
    own = [scaled(slow) for slow in (1, 3, 2)]
    runs = [clocked(1, own=one) for one in own] + [clocked(2, own=one, comm=0.05) for one in own]

    study = conclude(Study(target="digits", points=measured(runs)), 0.7)

    assert [overhead(point) for point in study.points] == ["", ""]
    assert "workers  overhead" not in study_text(study)
    assert ">overhead<" not in render(study)


def test_conclude_can_be_repeated_with_another_bar():
    study = concluded(
        [clocked(1), clocked(2), clocked(2, own=scaled(1 / 2)), clocked(4, own=scaled(1 / 4))], 0.7
    )

    assert conclude(study, 0.7) == study
    assert replace(conclude(study, 0.9), verdict=None) == replace(study, verdict=None)
