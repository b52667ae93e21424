"""What counts are the samples that were trained on, though a model's rows say something else."""

from dataclasses import replace

import pytest

from samestep.scaling.measured import measured
from samestep.scaling.notes import notes_of_runs
from samestep.scaling.rank_files import RankFile
from samestep.scaling.relate import relate
from samestep.scaling.samples import note_of_samples
from support.clocked_runs import OWN, clocked


def seen(workers, *, rows, loaded=0, elements=0, kind="native", half=True, **more):
    """Return a run of so many rows, samples loaded, and numbers on each worker in each step."""
    own = {name: seconds / (workers if half else 1) for name, seconds in OWN.items()}
    run = clocked(workers, own=own, kind=kind, **more)
    told = {"samples": rows, "loaded": loaded, "elements": elements}
    ranks = [RankFile(one.header, [line | told for line in one.steps], one.end) for one in run.ranks]
    return replace(run, ranks=ranks)


def found(*runs):
    return [
        (point.mode, point.workers, point.global_batch, round(point.speedup, 6))
        for point in relate(measured(runs))
    ]


def strong(batch):
    return [("strong", 1, batch, 1.0), ("strong", 2, batch, 2.0)]


def test_a_batch_whose_first_dimension_is_time_is_what_was_loaded():
    runs = seen(1, rows=35, loaded=20), seen(2, rows=35, loaded=10)
    assert found(*runs) == strong(20)
    assert note_of_samples(runs).startswith(
        "Samples are those that were loaded. Models were called with 1.75 rows for each"
    )


def test_graphs_are_counted_and_not_their_nodes():
    runs = seen(1, rows=612, loaded=32), seen(2, rows=290, loaded=16)
    assert found(*runs) == strong(32)


def test_a_model_that_is_called_with_no_tensor_has_the_samples_that_were_loaded():
    runs = seen(1, rows=0, loaded=32), seen(2, rows=0, loaded=16)
    assert found(*runs) == strong(32)
    assert note_of_samples(runs) == ""


def test_without_a_loader_the_dimension_that_shrank_is_the_batch():
    """As in torch's word language model: 35 steps of time by 20 columns."""
    runs = seen(1, rows=35, elements=700), seen(2, rows=35, elements=350)
    assert found(*runs) == strong(35)
    note = note_of_samples(runs)
    assert "the first dimension is not the batch, which stayed" in note
    assert note in notes_of_runs(runs)


def test_without_a_loader_a_batch_that_grew_did():
    runs = seen(1, rows=35, elements=700), seen(2, rows=35, elements=690, half=False)
    assert found(*runs) == [("weak", 1, 35, 1.0), ("weak", 2, 70, 2.0)]
    assert note_of_samples(runs).startswith("No DataLoader gave each step its batch")


def test_each_worker_may_load_the_whole_batch_and_take_its_part():
    runs = seen(1, rows=24, loaded=24), seen(2, rows=12, loaded=24)
    assert found(*runs) == strong(24)
    assert note_of_samples(runs).startswith("Each worker loads whole batches")
    one, two = measured(runs)
    assert two.worker_hours_per_epoch == pytest.approx(one.worker_hours_per_epoch / 2)  # of 12,800 loaded


def test_each_of_a_serial_scripts_workers_loads_the_batch_of_all():
    runs = seen(1, rows=24, loaded=24, kind="serial"), seen(2, rows=12, loaded=24, kind="steered")
    assert found(*runs) == strong(24)
    assert note_of_samples(runs) == ""


def test_an_epoch_takes_as_long_as_its_samples_are_loaded_in_however_often_models_are_called():
    once, often = (measured([seen(1, rows=rows, loaded=64)])[0] for rows in (64, 256))
    assert often.worker_hours_per_epoch == once.worker_hours_per_epoch == pytest.approx(0.096 * 100 / 3600)


@pytest.mark.parametrize("loaded", [0, None])
def test_of_rows_that_nobody_loaded_an_epoch_is_not_known(loaded):
    (point,) = measured([seen(1, rows=64, loaded=loaded)])
    assert (point.global_batch, point.worker_hours_per_epoch) == (64, None)


def test_all_runs_are_counted_alike():
    runs = seen(1, rows=64, loaded=32), seen(2, rows=64, loaded=0, half=False)
    assert [batch for _, _, batch, _ in found(*runs)] == [64, 128]


def test_a_recipes_rows_are_its_samples():
    runs = seen(1, rows=64, kind="recipe"), seen(2, rows=32, kind="recipe")
    assert note_of_samples(runs) == ""
    assert all(point.worker_hours_per_epoch for point in measured(runs))


def test_two_batches_on_one_worker_are_a_base_each():
    def columns(workers, batch):
        return seen(workers, rows=35, loaded=batch // workers, elements=0)

    runs = [columns(1, 256), columns(2, 256), columns(1, 64), columns(2, 128)]
    assert [(mode, workers, batch) for mode, workers, batch, _ in found(*runs)] == [
        ("strong", 1, 256),
        ("strong", 2, 256),
        ("weak", 1, 64),
        ("weak", 2, 128),
    ]
