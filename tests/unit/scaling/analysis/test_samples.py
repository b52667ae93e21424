"""Counted samples are those that were trained on, even if the rows of a model differ."""

from dataclasses import replace

import pytest

from samestep.scaling.analysis.points import measured
from samestep.scaling.analysis.runs import RankFile
from samestep.scaling.analysis.speedup import relate
from support.clocked_runs import OWN, clocked


def run_of(workers, *, rows, loaded=0, elements=0, kind="native", half=True, **more):
    """Return a run with rows, loaded samples and elements of each worker in each step."""
    own = {name: seconds / (workers if half else 1) for name, seconds in OWN.items()}
    run = clocked(workers, own=own, kind=kind, **more)
    sizes = {"samples": rows, "loaded": loaded, "elements": elements}
    ranks = [RankFile(one.header, [line | sizes for line in one.steps], one.end) for one in run.ranks]
    return replace(run, ranks=ranks)


def related(*runs):
    return [
        (point.mode, point.workers, point.global_batch, round(point.speedup, 6))
        for point in relate(measured(runs))
    ]


def strong(batch):
    return [("strong", 1, batch, 1.0), ("strong", 2, batch, 2.0)]


@pytest.mark.parametrize(
    ("rows", "loaded"),
    [((35, 35), (20, 10)), ((612, 290), (32, 16)), ((0, 0), (32, 16))],
    ids=["the first dimension is time", "nodes of graphs", "no tensor inputs"],
)
def test_loaded_samples_are_counted_instead_of_rows(rows, loaded):
    runs = (run_of(workers, rows=rows[workers - 1], loaded=loaded[workers - 1]) for workers in (1, 2))
    assert related(*runs) == strong(loaded[0])


def test_without_a_loader_the_dimension_that_shrank_is_the_batch():
    """As in torch's word language model: 35 steps of time by 20 columns."""
    runs = run_of(1, rows=35, elements=700), run_of(2, rows=35, elements=350)
    assert related(*runs) == strong(35)


def test_without_a_loader_a_batch_that_grew_is_weak_scaling():
    runs = run_of(1, rows=35, elements=700), run_of(2, rows=35, elements=690, half=False)
    assert related(*runs) == [("weak", 1, 35, 1.0), ("weak", 2, 70, 2.0)]


def test_each_worker_can_load_the_global_batch_and_take_its_shard():
    runs = run_of(1, rows=24, loaded=24), run_of(2, rows=12, loaded=24)
    assert related(*runs) == strong(24)
    one, two = measured(runs)
    assert two.worker_hours_per_epoch == pytest.approx(one.worker_hours_per_epoch / 2)  # of 12,800 loaded


def test_the_length_of_an_epoch_does_not_depend_on_the_calls_of_models():
    once, often = (measured([run_of(1, rows=rows, loaded=64)])[0] for rows in (64, 256))
    assert often.worker_hours_per_epoch == once.worker_hours_per_epoch == pytest.approx(0.096 * 100 / 3600)


@pytest.mark.parametrize("loaded", [0, None])
def test_rows_without_a_loader_have_no_epoch(loaded):
    (point,) = measured([run_of(1, rows=64, loaded=loaded)])
    assert (point.global_batch, point.worker_hours_per_epoch) == (64, None)


def test_all_runs_are_counted_the_same_way():
    runs = run_of(1, rows=64, loaded=32), run_of(2, rows=64, loaded=0, half=False)
    assert [batch for _, _, batch, _ in related(*runs)] == [64, 128]


def test_a_recipes_rows_are_its_samples():
    runs = run_of(1, rows=64, kind="recipe"), run_of(2, rows=32, kind="recipe")
    assert all(point.worker_hours_per_epoch for point in measured(runs))


def test_two_batches_on_one_worker_are_two_baselines():
    def columns(workers, batch):
        return run_of(workers, rows=35, loaded=batch // workers, elements=0)

    runs = [columns(1, 256), columns(2, 256), columns(1, 64), columns(2, 128)]
    assert [(mode, workers, batch) for mode, workers, batch, _ in related(*runs)] == [
        ("strong", 1, 256),
        ("strong", 2, 256),
        ("weak", 1, 64),
        ("weak", 2, 128),
    ]
