"""The sentence for those who pay says no more than its figures carry, and is about the best variant."""

from samestep.report.scaling.page import render
from samestep.report.scaling.text import study_text
from samestep.scaling.conclude import conclude
from samestep.scaling.measured import measured
from samestep.scaling.study import Study, Verdict
from samestep.scaling.times import from_times
from support.clocked_runs import OWN, clocked
from support.studies import study as made_up


def judged(seconds: dict[int, list[float]], bar=None) -> Verdict:
    """Return the verdict on runs that took so long."""
    rows = [(workers, taken) for workers, several in seconds.items() for taken in several]
    return conclude(Study(target="times.csv", points=from_times(rows)), bar).verdict


def about(seconds: float) -> list[float]:
    return [0.99 * seconds, seconds, 1.01 * seconds]


def test_who_is_slower_than_one_worker_is_not_worth_it_at_any_bar():
    verdict = judged({1: about(100), 2: about(120)}, 0.4)

    assert verdict.manager == (
        "Not worth it at a bar of 40 %: 2 workers take 1.20 times as long as one, at 2.4 times the "
        "worker-hours for the same work."
    )
    assert [(one.is_worth, one.is_certain) for one in verdict.worth] == [(True, True), (False, True)]
    assert verdict.largest_worth == 1


def test_whether_workers_are_faster_at_all_may_be_open():
    verdict = judged({1: [100, 108, 92], 2: [99, 93, 105]}, 0.4)

    assert verdict.manager.startswith("Probably worth it at a bar of 40 %, up to 2 workers")
    assert "Whether 2 workers are faster than one cannot be told: 0." in verdict.engineer


def test_as_fast_as_one_is_said_so():
    manager = judged({1: about(100), 2: about(100)}).manager
    assert "2 workers train as fast as one, at 2.0 times the worker-hours" in manager


def test_where_the_runs_say_nothing_nothing_is_said():
    wild = {1: [1 / 18, 1 / 600, 1 / 3000], 2: [1 / 66579, 1 / 1300, 1 / 40]}
    ideal = {1: [100, 300, 30], 2: [70, 20, 150]}
    quiet = {1: about(100), 2: [30, 60, 120]}

    for seconds in (wild, ideal, quiet):
        for bar in (None, 0.7):
            verdict = judged(seconds, bar)
            assert verdict.manager.startswith("Whether")
            assert "cannot be told" in verdict.manager
            assert not any(one.is_certain for one in verdict.worth[1:])


def test_a_wide_interval_on_one_side_is_told_by_its_ends():
    verdict = judged({1: about(100), 2: [60, 95, 80]}, 0.95)
    assert verdict.manager.startswith("Whether more than 1 worker is worth it at a bar of 95 %")

    verdict = judged({1: about(100), 4: [100, 190, 140]}, 0.7)
    assert verdict.manager == (
        "Not worth it at a bar of 70 %: 4 workers train 0.32 to 1.60 times as fast as one."
    )


def test_what_is_sure_of_fewer_workers_is_told_where_more_are_not():
    seconds = {1: about(100), 2: about(52), 4: [20, 70, 40]}

    assert judged(seconds, 0.7).manager.startswith(
        "Worth it at a bar of 70 %, at least up to 2 workers, which train 1.92 times as fast as one"
    )
    assert judged(seconds, 0.7).largest_worth == 2
    assert judged({**seconds, 4: [40, 140, 80]}).manager.endswith(
        "; whether more than 2 bring more than they cost cannot be told."
    )


def test_who_is_worth_it_beyond_some_that_are_not_is_told_so():
    assert judged({1: about(100), 2: about(77), 4: about(31)}, 0.7).manager.startswith(
        "Worth it at a bar of 70 %, with 4 workers, which train 3.2 times as fast as one"
    )


def test_far_more_than_the_ideal_is_no_yes():
    verdict = judged({1: about(100), 2: about(40)}, 0.7)

    assert verdict.manager == (
        "Whether more workers are worth it cannot be told: 2 workers came to 125 % of the ideal; "
        "measure again."
    )
    assert [one.is_certain for one in verdict.worth] == [True, False]
    assert verdict.largest_worth is None
    assert "Measure again" in verdict.serial


def test_the_verdict_is_about_the_fastest_variant_and_tells_the_others():
    runs = []
    for seed in range(3):
        for variant, exchange in (("sync=ddp", 0.030), ("sync=flat", 0.002)):
            of = {"noise": 0.01, "seed": seed, "variant": variant}
            half = {name: seconds / 2 for name, seconds in OWN.items()}
            runs += [clocked(1, **of), clocked(2, own=half, exchange=exchange, **of)]

    study = conclude(Study(target="digits", points=measured(runs)), 0.7)
    verdict = study.verdict

    assert verdict.variant == "sync=flat"
    assert verdict.manager.startswith(
        "sync=flat: Worth it at a bar of 70 %, up to 2 workers, which train 1.9"
    )
    assert verdict.manager.endswith("; sync=ddp: 62 %.")
    assert verdict.engineer.startswith("sync=flat: 2 workers: 1.9")
    assert [one.split(": ")[0] for one in verdict.others] == ["sync=ddp"]
    assert verdict.largest_worth == 2
    tiles = render(study).split('class="tiles"')[1].split("</ul>")[0]
    assert "b: sync=flat" in tiles


def test_the_engineer_hears_of_the_workers_that_the_manager_hears_of_then_of_the_next():
    verdict = made_up(workers=(1, 2, 4, 8), bar=0.7).verdict

    assert "up to 4 workers" in verdict.manager
    assert verdict.engineer.startswith("4 workers: 3.1x, 78 %. Lost: ")
    assert " 8 workers: 4.8x, 60 %. Lost: " in verdict.engineer

    enough = judged({1: about(100), 2: about(110), 4: about(112)}).engineer
    assert enough == "2 workers: 0.91x, 45 %. 4 workers: 0.89x, 22 %."


def test_of_runs_that_say_nothing_no_loss_is_told_and_nothing_is_to_be_tried():
    own = [{name: seconds * slow for name, seconds in OWN.items()} for slow in (1, 3, 2)]
    runs = [clocked(1, own=one) for one in own] + [clocked(2, own=one, exchange=0.05) for one in own]

    study = conclude(Study(target="digits", points=measured(runs)), 0.7)
    engineer = study.verdict.engineer

    assert "overhead" not in study_text(study) + render(study)
    assert engineer.startswith(
        "2 workers: 0.79x, 40 % by the medians; what was lost cannot be told. Whether 2"
    )
    assert "Try" not in engineer
