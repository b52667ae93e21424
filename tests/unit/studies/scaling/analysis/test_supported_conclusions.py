"""A verdict is as certain as the intervals that it is based on."""

from samestep.studies.scaling.analysis.points import from_times
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.analysis.verdict import conclude
from support.clocked_runs import codes, timed


def found(verdict):
    return verdict.code, verdict.workers, verdict.is_certain


def test_a_bar_within_the_interval_is_a_caveat():
    rows = [(1, 100), (1, 101), (1, 99), (2, 71), (2, 69), (2, 75), (4, 27), (4, 27.1), (4, 26.9)]
    verdict = conclude(Study(target="times.csv", points=from_times(rows)), 0.7).verdict

    assert [one.is_certain for one in verdict.worth] == [True, False, True]
    assert codes(verdict, "caveat") == [("bar-undecided", (2,))]
    assert found(verdict) == ("worth", 4, True)

    verdict = conclude(Study(target="times.csv", points=from_times(rows[:-3])), 0.7).verdict
    assert found(verdict) == ("worth", 2, False)


def test_a_yes_without_repeats_is_not_certain():
    assert [one.is_certain for one in timed({1: 100, 2: 51}, 0.7).verdict.worth] == [True, False]


def repeated(*rows: tuple[int, float], bar=None):
    """Return the verdict on three equal times for each number of workers."""
    times = [row for row in rows for _ in range(3)]
    return conclude(Study(target="times.csv", points=from_times(times)), bar).verdict


def test_a_result_that_the_runs_agree_on_is_certain():
    assert found(repeated((1, 100), (2, 55))) == ("speedup", 2, True)
    assert found(repeated((1, 100), (2, 55), bar=0.7)) == ("worth", 2, True)
    enough = repeated((1, 100), (2, 110), (4, 112))
    assert found(enough) == ("baseline-enough", 2, True)
    assert codes(enough, "caveat") == []
    assert not [text for text in (enough.manager, enough.engineer) if "robably" in text]


def test_a_result_of_single_runs_is_not_certain():
    enough = timed({1: 100, 2: 110, 4: 112}).verdict
    gain = timed({1: 100, 2: 55}).verdict

    assert found(enough) == ("baseline-enough", 2, False)
    assert found(gain) == ("speedup", 2, False)
    assert all("robably" in one.manager for one in (enough, gain))
    assert codes(gain, "caveat") == [("single-runs", ())]


def rates(of: dict[int, list[float]], bar=None):
    """Return the verdict on runs with these rates."""
    rows = [(workers, 1 / rate) for workers, several in of.items() for rate in several]
    return conclude(Study(target="times.csv", points=from_times(rows)), bar).verdict


def test_a_gain_is_certain_if_the_whole_interval_brings_more_than_it_costs():
    """2 workers are 1.1 to 2.0 times as fast: from 1.41 on they bring more than they cost."""
    one = [100, 100.1, 99.9]

    verdict = rates({1: one, 2: [150, 165, 130]})

    assert found(verdict) == ("speedup", 2, False)
    assert codes(verdict, "caveat") == [("gain-undecided", (2, 1))]
    assert all(value in verdict.engineer for value in ("1.10x", "1.99x", "1.41x"))
    assert found(rates({1: one, 2: [150, 152, 148]})) == ("speedup", 2, True)


def test_a_knee_is_certain_if_all_numbers_beyond_it_cost_more_than_they_bring():
    of = {1: [100, 110, 92], 2: [155, 150, 160], 4: [200, 215, 205], 8: [280, 290, 300]}

    verdict = rates(of)

    assert (verdict.knee, verdict.is_certain) == (2, False)
    assert {("gain-undecided", (4, 2)), ("gain-undecided", (8, 2))} <= set(codes(verdict, "caveat"))

    sure = rates({1: [100, 101, 99], 2: [180, 181, 182], 4: [200, 201, 202], 8: [290, 291, 292]})
    assert found(sure) == ("speedup", 2, True)
    assert sure.knee == 2
    assert codes(sure, "caveat") == []


def test_a_baseline_is_certainly_enough_if_all_larger_numbers_cost_more_than_they_bring():
    of = {1: [100, 101, 99], 2: [110, 111, 109]}

    assert found(rates(of)) == ("baseline-enough", 2, True)
    assert found(rates(of | {4: [150, 190, 170]})) == ("baseline-enough", 2, False)


def test_a_larger_number_that_can_reach_the_bar_is_a_caveat():
    of = {1: [100, 101, 99], 2: [180, 181, 182]}

    open_end = rates(of | {4: [270, 285, 260]}, 0.7)
    assert found(open_end) == ("worth", 2, True)
    assert "at least" in open_end.manager
    assert codes(open_end, "caveat") == [("bar-undecided", (4,))]

    closed = rates(of | {4: [200, 201, 202]}, 0.7)
    assert found(closed) == ("worth", 2, True)
    assert codes(closed, "caveat") == []
