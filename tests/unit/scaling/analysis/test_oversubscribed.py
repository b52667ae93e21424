"""Oversubscribed points are shown without a conclusion, above all if they are the baseline."""

from samestep.scaling.analysis.study import Study
from samestep.scaling.report.page import render
from samestep.scaling.report.tables import of_fastest, study_text, worth
from support.clocked_runs import clocked, concluded, scaled


def oversubscribed_baseline(*, weak: bool = False, faster: float = 1.0) -> Study:
    """Return 2 oversubscribed workers, and 4 and 8 that are not, `faster` times as fast."""
    runs = [
        clocked(
            n,
            own=scaled(1 / n / (faster if n > 2 else 1)),
            comm=0.004 if n > 2 else 0.001,
            batch=64 * (n // 2 if weak else 1),
            oversubscribed=n == 2,
            noise=0.01,
            seed=seed,
        )
        for n in (2, 4, 8)
        for seed in range(3)
    ]
    return concluded(runs, 0.7)


def test_nothing_is_worth_it_or_not_against_an_oversubscribed_baseline():
    study = oversubscribed_baseline()

    assert [one.is_certain for one in study.verdict.worth] == [False] * 3
    assert [worth(study, point) for point in study.points] == ["", "unknown", "unknown"]
    assert (study.verdict.knee, study.verdict.largest_worth) == (None, None)


def test_overhead_against_an_oversubscribed_baseline_is_unknown():
    study = oversubscribed_baseline()

    assert study.verdict.code == "baseline-oversubscribed"
    assert not any(point.losses for point in study.points)
    for text in (study_text(study), render(study)):
        assert "exposed communication (" not in text


def test_an_oversubscribed_number_of_workers_is_neither_worth_it_nor_not():
    runs = [clocked(n, own=scaled(1 / n), oversubscribed=n == 4) for n in (1, 2, 4)] * 3
    study = concluded(runs, 0.7)

    assert [worth(study, point) for point in study.points] == ["", "yes", "unknown"]


def test_oversubscribed_variants_are_not_compared():
    runs = [
        clocked(n, own=scaled(slow), oversubscribed=n == 2, variant=name, noise=0.01, seed=seed)
        for n in (1, 2)
        for seed in range(3)
        for name, slow in (("a", 1.0), ("b", 0.8))
    ]

    study = concluded(runs)
    assert [bool(of_fastest(study, point)) for point in study.points] == [True, False] * 2
