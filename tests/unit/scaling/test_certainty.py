"""A verdict is as sure as the intervals that it stands on."""

from samestep.scaling.conclude import conclude
from samestep.scaling.study import Study
from samestep.scaling.times import from_times
from support.clocked_runs import timed


def test_a_bar_within_the_interval_is_a_doubt():
    rows = [(1, 100), (1, 101), (1, 99), (2, 71), (2, 69), (2, 75), (4, 27), (4, 27.1), (4, 26.9)]
    verdict = conclude(Study(target="times.csv", points=from_times(rows)), 0.7).verdict

    assert [one.is_certain for one in verdict.worth] == [True, False, True]
    assert "Whether 2 workers reach 70 % cannot be told: 6" in verdict.engineer
    assert "Whether 4" not in verdict.engineer
    assert verdict.manager.startswith("Worth it at a bar of 70 %, up to 4 workers, which train")

    verdict = conclude(Study(target="times.csv", points=from_times(rows[:-3])), 0.7).verdict
    assert verdict.manager.startswith("Probably worth it at a bar of 70 %, up to 2 workers, which train")


def test_a_yes_without_repeats_is_not_certain():
    assert [one.is_certain for one in timed({1: 100, 2: 51}, 0.7).verdict.worth] == [True, False]


def repeated(*rows: tuple[int, float], spread: float = 0.0, bar=None) -> Study:
    """Return a study of three times for each number of workers, so far apart."""
    times = [(n, seconds * (1 + by * spread)) for n, seconds in rows for by in (-1, 0, 1)]
    return conclude(Study(target="times.csv", points=from_times(times)), bar)


def test_what_the_runs_agree_on_is_said_without_a_probably():
    assert repeated((1, 100), (2, 55)).verdict.manager.startswith("2 workers train 1.82 times as fast")
    enough = repeated((1, 100), (2, 110), (4, 112)).verdict
    assert enough.manager.startswith("1 worker is enough: 2 workers take 1.10 times as long")
    assert "Probably" not in repeated((1, 100), (2, 55), bar=0.7).verdict.manager
    assert "tell" not in enough.engineer


def test_what_ran_once_is_no_more_than_probable():
    enough = timed({1: 100, 2: 110, 4: 112}).verdict
    gain = timed({1: 100, 2: 55}).verdict

    assert enough.manager.startswith("Probably 1 worker is enough: 2 workers take 1.10 times as long as one")
    assert gain.manager.startswith("2 workers probably train 1.82 times as fast as one")
    assert "Without several runs of each number of workers nobody can tell how sure" in gain.engineer


def rates(of: dict[int, list[float]], bar=None):
    """Return the verdict on runs with these rates."""
    rows = [(workers, 1 / rate) for workers, several in of.items() for rate in several]
    return conclude(Study(target="times.csv", points=from_times(rows)), bar).verdict


def test_a_gain_is_sure_where_the_whole_interval_brings_more_than_it_costs():
    """2 workers are 1.1 to 2.0 times as fast: from 1.41 on they bring more than they cost."""
    one = [100, 100.1, 99.9]

    verdict = rates({1: one, 2: [150, 165, 130]})

    assert verdict.manager.startswith("2 workers probably train 1.50 times as fast as one, at 33 % more")
    assert verdict.engineer.endswith(
        "Whether 2 workers bring more than they cost cannot be told: they are 1.10x to 1.99x as fast as one, "
        "and it takes 1.41x; more runs of each would tell."
    )
    assert rates({1: one, 2: [150, 152, 148]}).manager.startswith("2 workers train 1.50 times as fast as one")


def test_a_knee_is_sure_where_all_that_is_beyond_surely_costs_more_than_it_brings():
    of = {1: [100, 110, 92], 2: [155, 150, 160], 4: [200, 215, 205], 8: [280, 290, 300]}

    verdict = rates(of)

    assert verdict.knee == 2
    assert verdict.manager.endswith("; beyond 2, more workers probably cost more than they bring.")
    assert "Whether 4 workers bring more than they cost cannot be told: they are 1." in verdict.engineer
    assert "Whether 8 workers bring more than they cost cannot be told: they are 1." in verdict.engineer

    sure = rates({1: [100, 101, 99], 2: [180, 181, 182], 4: [200, 201, 202], 8: [290, 291, 292]})
    assert sure.manager.startswith("2 workers train 1.81 times as fast as one")
    assert sure.manager.endswith("; beyond 2, more workers cost more than they bring.")
    assert "told" not in sure.engineer


def test_that_one_is_enough_is_sure_where_every_larger_number_surely_costs_more_than_it_brings():
    of = {1: [100, 101, 99], 2: [110, 111, 109]}

    assert rates(of).manager.startswith("1 worker is enough")
    assert rates(of | {4: [150, 190, 170]}).manager.startswith("Probably 1 worker is enough")


def test_that_a_larger_number_may_reach_the_bar_too_is_told():
    of = {1: [100, 101, 99], 2: [180, 181, 182]}

    open_end = rates(of | {4: [270, 285, 260]}, 0.7)

    assert open_end.manager.startswith(
        "Worth it at a bar of 70 %, at least up to 2 workers, which train 1.81"
    )
    assert rates(of | {4: [200, 201, 202]}, 0.7).manager.startswith(
        "Worth it at a bar of 70 %, up to 2 workers"
    )
