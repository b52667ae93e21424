"""Figures are printed as tables, with the fastest."""

from samestep.bench.figures import fastest_synchronizer, fastest_text, step_cells, table
from samestep.bench.step_times import StepRow
from support.bench_rows import rows_of

BUCKET = 25 << 20


def test_a_table_has_the_fastest_first_and_each_size_once():
    lines = table(rows_of({"native": {65536: 540e-6, BUCKET: 20e-3}, "shared_memory": {65536: 45e-6}}))

    assert [line.split() for line in lines[1:]] == [
        ["64", "KiB", "shared_memory", "45", "us", "45", "us", "-", "45", "us", "1.46", "1.46"],
        ["native", "540", "us", "540", "us", "-", "540", "us", "0.121", "0.121"],
        ["25", "MiB", "native", "20", "ms", "20", "ms", "-", "20", "ms", "1.31", "1.31"],
    ]
    assert len({line.index("us") for line in lines[1:3]}) == 1


def test_the_fastest_algorithms_are_named_by_size():
    times = {"tree": {4: 1e-5, 1 << 20: 1e-5}, "ring": {4: 2e-5, 1 << 20: 2e-6}}
    assert fastest_text(rows_of(times)) == "tree from 4 B; ring from 1 MiB"


def test_algorithms_with_overlapping_quartiles_are_named_together():
    rows = rows_of({"native": {4: 9e-5}, "ring": {4: 1e-5}, "tree": {4: 1.1e-5}}, spread=0.1)
    assert {"ring", "tree"} <= {*fastest_text(rows).split()}


def step_row(sync, efficiency, exposed=0.001, *, spread=0.001):
    return StepRow(
        model="convnet",
        batch_per_worker=16,
        workers=2,
        sync=sync,
        step_s=0.01 / efficiency,
        exposed_sync_s=exposed,
        efficiency=efficiency,
        efficiency_quartiles=(efficiency - spread, efficiency + spread),
    )


STEP_ROWS = [step_row("alone", 1.0, 0.0), step_row("ddp", 0.8, None), step_row("flat", 0.97)]


def test_the_table_of_synchronizers_begins_with_the_best():
    cells = step_cells(STEP_ROWS)

    assert [row[0] for row in cells] == ["alone", "flat", "ddp"]
    assert cells[2][2:4] == ("-", "80%")


def test_the_fastest_synchronizer_is_named_with_those_that_are_as_fast():
    rows = [step_row("alone", 1.0), step_row("flat", 0.95, spread=0.1), step_row("exact", 0.5, spread=0.1)]

    assert fastest_synchronizer(rows) == "flat"
    assert {"flat", "ddp"} <= {*fastest_synchronizer([*rows, step_row("ddp", 0.8, spread=0.1)]).split()}
