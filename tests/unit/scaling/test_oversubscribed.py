"""Workers with too few cores are shown, and conclude nothing: least of all where they are the fewest."""

import pytest

from samestep.report.scaling.page import render
from samestep.report.scaling.rows import worth
from samestep.report.scaling.text import study_text
from samestep.scaling.study import Study
from support.clocked_runs import clocked, concluded, scaled


def crowded_base(*, weak: bool = False, faster: float = 1.0) -> Study:
    """Return 2 oversubscribed workers, and 4 and 8 that are not, so many times as fast."""
    runs = [
        clocked(
            n,
            own=scaled(1 / n / (faster if n > 2 else 1)),
            exchange=0.004 if n > 2 else 0.001,
            batch=64 * (n // 2 if weak else 1),
            oversubscribed=n == 2,
            noise=0.01,
            seed=seed,
        )
        for n in (2, 4, 8)
        for seed in range(3)
    ]
    return concluded(runs, 0.7)


def test_against_crowded_workers_nobody_is_worth_it_nor_not():
    study = crowded_base()

    assert [one.is_certain for one in study.verdict.worth] == [False] * 3
    assert [worth(study, point) for point in study.points] == ["", "unknown", "unknown"]
    assert (study.verdict.knee, study.verdict.largest_worth) == (None, None)


@pytest.mark.parametrize(("weak", "model"), [(False, "Amdahl"), (True, "Gustafson")])
def test_no_share_is_laid_through_speedups_against_crowded_workers(weak, model):
    share, exchange = crowded_base(weak=weak).fit

    assert share.words == (
        f"{model}: nothing can be told: 2 workers had too few cores, and all speedups are against that."
    )
    assert (share.workers, share.parameters) == ((), {})
    assert exchange.workers == (4, 8)  # what is waited for is compared with nobody


def test_of_what_was_lost_against_crowded_workers_nothing_is_told():
    study = crowded_base()

    assert not any(point.losses for point in study.points)
    assert study.verdict.engineer.startswith("8 workers: 6.1x, 77 %; what was lost")
    assert study.verdict.engineer.endswith(
        "what was lost cannot be told: 2 workers had too few cores, and all speedups are against that."
    )
    for said in (study_text(study), render(study)):
        assert "Try " not in said
        assert "exposed communication (" not in said


def test_why_crowded_workers_are_slow_is_no_riddle():
    assert crowded_base(faster=3).verdict.serial == ""


def test_a_crowded_number_of_workers_is_neither_worth_it_nor_not():
    runs = [clocked(n, own=scaled(1 / n), oversubscribed=n == 4) for n in (1, 2, 4)] * 3
    study = concluded(runs, 0.7)

    assert [worth(study, point) for point in study.points] == ["", "yes", "unknown"]


def test_variants_of_crowded_workers_are_not_compared():
    runs = [
        clocked(n, own=scaled(slow), oversubscribed=n == 2, variant=name, noise=0.01, seed=seed)
        for n in (1, 2)
        for seed in range(3)
        for name, slow in (("a", 1.0), ("b", 0.8))
    ]
    verdict = concluded(runs).verdict

    assert [sentence.split(":")[0] for sentence in verdict.comparisons] == ["1 worker"]
