"""The scaling mode is measured, and speedup is against the baseline of the same mode."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.scaling.analysis.points import Time, from_times, measured
from samestep.scaling.analysis.speedup import relate
from samestep.scaling.analysis.study import Point
from support.clocked_runs import OWN, clocked


def share(factor: float) -> dict[str, float]:
    return {name: seconds * factor for name, seconds in OWN.items()}


def strong(workers: int, *, batch: float = 64, **more):
    return clocked(workers, batch=batch, own=share(1 / workers), **more)


def weak(workers: int, *, each: float = 64, **more):
    return clocked(workers, batch=each * workers, **more)


def filed(runs) -> list[tuple[str, str, int]]:
    return [(point.mode, point.variant, point.workers) for point in relate(measured(runs))]


def test_a_constant_batch_is_strong_and_one_that_grew_is_weak():
    assert filed([strong(4), strong(1), strong(2)]) == [
        ("strong", "", 1),
        ("strong", "", 2),
        ("strong", "", 4),
    ]
    assert filed([weak(1), weak(2), weak(4)]) == [("weak", "", 1), ("weak", "", 2), ("weak", "", 4)]


def test_both_modes_can_share_a_baseline():
    points = relate(measured([strong(1), strong(2), weak(2), weak(4)]))

    assert [(point.mode, point.workers) for point in points] == [
        ("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2), ("weak", 4),
    ]  # fmt: skip
    assert [point.speedup for point in points] == pytest.approx([1, 2, 1, 2, 4])
    assert [point.efficiency for point in points] == pytest.approx([1.0] * 5)


def test_each_mode_has_its_own_baseline_if_there_are_two():
    runs = [strong(1, batch=256), strong(2, batch=256), strong(4, batch=256), weak(1), weak(2)]

    assert filed(runs) == [
        ("strong", "", 1), ("strong", "", 2), ("strong", "", 4),
        ("weak", "", 1), ("weak", "", 2), ("weak", "", 4),
    ]  # fmt: skip
    assert {point.global_batch for point in relate(measured(runs)) if point.mode == "weak"} == {64, 128, 256}


def test_rounded_shards_are_the_same_batch():
    assert filed([strong(1, batch=256), strong(3, batch=255)]) == [("strong", "", 1), ("strong", "", 3)]


def test_any_other_batch_is_in_neither_mode():
    assert filed([strong(1), strong(2, batch=96)]) == [("neither", "", 1), ("neither", "", 2)]
    assert filed([strong(1), strong(2), strong(4, batch=96)]) == [
        ("strong", "", 1), ("strong", "", 2), ("neither", "", 1), ("neither", "", 4),
    ]  # fmt: skip


def test_a_second_batch_of_the_baseline_is_kept():
    assert filed([strong(1), strong(1, batch=100)]) == [("strong", "", 1), ("neither", "", 1)]


def test_variants_have_their_own_baseline():
    runs = [strong(n, variant=name, comm=0.01 * (name == "b") * (n > 1)) for name in "ba" for n in (1, 2)]
    points = relate(measured(runs))

    assert [(point.variant, point.workers) for point in points] == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]
    assert points[1].speedup < points[3].speedup == pytest.approx(2)


def test_a_baseline_of_several_workers_has_their_number_as_speedup():
    two, eight = relate(measured([strong(2), strong(8)]))

    assert (two.speedup, two.efficiency) == (2, 1)
    assert (eight.speedup, eight.efficiency) == (pytest.approx(8), pytest.approx(1))


def test_weak_scaling_is_relative_to_the_batch_of_the_baseline():
    assert filed([weak(2), weak(4), weak(8)]) == [("weak", "", 2), ("weak", "", 4), ("weak", "", 8)]


def test_the_interval_of_a_speedup_includes_both_rates():
    runs = [strong(n, noise=0.2, seed=seed) for seed in range(3) for n in (1, 2)]
    one, two = relate(measured(runs))

    assert one.speedup_low is one.speedup_high is None
    assert two.samples_per_second_low / one.samples_per_second_high < two.speedup_low < two.speedup
    assert two.speedup < two.speedup_high < two.samples_per_second_high / one.samples_per_second_low


def test_relate_can_be_repeated():
    points = relate(measured([strong(1), strong(2), weak(2), weak(4), strong(4, batch=100)]))

    assert relate(points) == points


def test_times_can_be_weak():
    rows = [(2, 100.0), (2, 100.0), (4, 60.0), Time(4, 110.0, is_weak=True)]
    points = relate(from_times(rows))

    assert [(point.mode, point.workers, len(point.runs)) for point in points] == [
        ("strong", 2, 2), ("strong", 4, 1), ("weak", 2, 2), ("weak", 4, 1),
    ]  # fmt: skip
    assert [point.efficiency for point in points] == pytest.approx([1, 100 / 120, 1, 100 / 110])
    assert points[3].speedup == pytest.approx(4 * 100 / 110)


def test_strong_and_weak_times_can_have_their_own_baselines():
    rows = [Time(1, 640.0), Time(8, 85.0), Time(1, 10.0, is_weak=True), Time(8, 11.0, is_weak=True)]
    points = relate(from_times(rows))

    assert [(point.mode, point.workers, len(point.runs)) for point in points] == [
        ("strong", 1, 1), ("strong", 8, 1), ("weak", 1, 1), ("weak", 8, 1),
    ]  # fmt: skip
    assert [point.speedup for point in points] == pytest.approx([1, 640 / 85, 1, 8 * 10 / 11])
    assert relate(points) == points


def test_relate_can_be_repeated_on_strong_and_weak_times():
    points = relate(from_times([(1, 100.0), (2, 52.0), (4, 30.0), Time(2, 104.0, is_weak=True)]))

    assert [(point.mode, point.workers) for point in points] == [
        ("strong", 1), ("strong", 2), ("strong", 4), ("weak", 1), ("weak", 2),
    ]  # fmt: skip
    assert relate(points) == points


def test_the_time_of_two_runs_is_that_of_the_slower():
    assert from_times([(1, 10.0), (1, 20.0)])[0].samples_per_second == 1 / 20


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 1e6)), min_size=1, max_size=12))
def test_times_become_related_points(rows):
    points = relate(from_times(rows))
    base = points[0]

    assert [point.workers for point in points] == sorted({workers for workers, _ in rows})
    for point in points:
        assert point.mode == "strong"
        assert len(point.runs) == sum(workers == point.workers for workers, _ in rows)
        assert point.efficiency == pytest.approx(point.speedup / point.workers)
        assert point.speedup / base.workers == pytest.approx(
            point.samples_per_second / base.samples_per_second
        )


def test_a_given_mode_is_kept_without_a_known_batch():
    points = [
        Point(workers=n, mode="weak", samples_per_second=100.0 * n, speedup=n, efficiency=1.0) for n in (1, 2)
    ]

    assert [point.mode for point in relate(points)] == ["weak", "weak"]
    assert relate([replace(points[0])])[0].mode == "strong"
