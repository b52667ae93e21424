"""Figures are printed as tables, sentences and charts."""

import re
import xml.etree.ElementTree as ET

from samestep.studies.bench.step_times import StepRow
from samestep.studies.bench.text import (
    answer,
    fastest_text,
    fits,
    results,
    step_answer,
    step_cells,
    table,
    times_chart,
    times_of,
)
from support.bench_rows import rows_of

BUCKET = 25 << 20


def test_a_table_has_the_fastest_first_and_each_size_once():
    lines = table(rows_of({"native": {65536: 540e-6, BUCKET: 20e-3}, "shared_memory": {65536: 45e-6}}))

    assert [line.split() for line in lines[1:]] == [
        ["64", "KiB", "shared_memory", "45", "us", "45", "us", "-", "45", "us", "1.46", "1.46", "18.2%"],
        ["native", "540", "us", "540", "us", "-", "540", "us", "0.121", "0.121", "1.5%"],
        ["25", "MiB", "native", "20", "ms", "20", "ms", "-", "20", "ms", "1.31", "1.31", "16.4%"],
    ]
    assert len({line.index("us") for line in lines[1:3]}) == 1


def test_rows_are_grouped_by_algorithm():
    times = {"ring": {4: 1.0, 16: 2.0}, "tree": {4: 3.0}}
    assert times_of(rows_of(times)) == times


def test_the_answer_compares_the_fastest_algorithm_with_native():
    times = {
        "native": {65536: 540e-6, BUCKET: 20e-3},
        "shared_memory": {65536: 45e-6, BUCKET: 2.85e-3},
        "ring": {65536: 50e-6, BUCKET: 25e-3},
    }
    assert answer(rows_of(times)) == (
        "shared_memory is 12x native at 64 KiB: 45 us, not 540 us; "
        "shared_memory is 7.0x native at 25 MiB: 2.85 ms, not 20 ms"
    )


def test_a_fastest_native_is_compared_with_the_next_algorithm():
    assert answer(rows_of({"native": {4: 1e-5}, "ring": {4: 2e-5}, "tree": {4: 3e-5}})) == (
        "native is 2.0x ring at 4 B: 10 us, not 20 us"
    )


def test_one_algorithm_is_reported_without_a_comparison():
    assert answer(rows_of({"ring": {4: 1e-5, 16: 2e-5}})) == "ring takes 20 us at 16 B"


def test_fits_and_crossovers_are_printed():
    times = {"tree": {4: 1e-5, 1 << 20: 1e-5}, "ring": {4: 2e-5, 1 << 20: 2e-6}}
    assert fits(times)[1].split() == ["tree", "10", "us", "0", "ns/B", "-"]
    assert fastest_text(rows_of(times)) == "tree from 4 B; ring from 1 MiB"


def test_algorithms_with_overlapping_quartiles_are_named_together():
    rows = rows_of({"native": {4: 9e-5}, "ring": {4: 1e-5}, "tree": {4: 1.1e-5}}, spread=0.1)

    assert not {"ring", "tree"} - {*re.split(r"[ ;,]", fastest_text(rows))}
    assert "9.0x" in answer(rows)
    assert "tree" in answer(rows)
    assert "x" not in answer([row for row in rows if row.algorithm != "native"])


def test_algorithms_of_equal_speed_at_the_only_size_are_named_once():
    rows = rows_of({"ring": {4: 1e-5, 16: 1e-5}, "tree": {4: 1.1e-5, 16: 1.1e-5}}, spread=0.1)

    assert len(results(rows)) == 2
    assert results([row for row in rows if row.bytes == 4]) == [
        answer([row for row in rows if row.bytes == 4])
    ]
    assert len(results(rows_of({"ring": {4: 1e-5}, "tree": {4: 2e-5}}))) == 2


def test_one_size_has_no_fit():
    assert fits({"tree": {4: 1e-5}, "ring": {4: 2e-5}}) == []


def test_the_chart_is_svg_with_a_line_for_each_algorithm_and_one_for_copying():
    times = {"ring": {4: 1e-5, 1 << 20: 1e-3}, "<b>": {4: 2e-5}}
    chart = times_chart(times, copying={4: 1e-9, 1 << 20: 1e-4}, title="a & b", name="ring")
    root = ET.fromstring(chart.svg())
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]

    assert {"a & b", "ring", "<b>", "copying memory", "16 B", "1 MiB", "10 us"} <= set(texts)


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


def test_the_best_synchronizer_is_compared_with_ddp():
    best, _, ddp = step_answer(STEP_ROWS).partition(", ")

    assert [word for word in best.split() if word in ("flat", "2", "97%")] == ["flat", "2", "97%"]
    assert ddp.split()[-1] == "80%"
    assert step_answer([step_row("alone", 1.0), step_row("ddp", 0.8)]).count("%") == 1


def test_the_best_synchronizer_is_compared_with_one_process():
    rows = [*STEP_ROWS, step_row("one_process", 2.0)]
    best = max((row for row in STEP_ROWS if row.sync != "alone"), key=lambda row: row.efficiency)

    assert f"{rows[-1].step_s / best.step_s:.2f} times" in step_answer(rows)
    assert best.sync in step_answer(rows)
    assert "%" not in step_answer([step_row("alone", 1.0), rows[-1]])


SPREAD = {"flat": 0.95, "ddp": 0.8, "exact": 0.5, "one_process": 0.9}


def test_synchronizers_with_overlapping_quartiles_are_named_together():
    rows = [step_row("alone", 1.0), *(step_row(name, at, spread=0.1) for name, at in SPREAD.items())]
    first, *_, last = step_answer(rows).partition("; ")

    assert [name for name in SPREAD if name in re.split("[ ,]", first)] == ["flat", "ddp"]
    assert re.findall(r"\d+%", first) == ["80%", "95%"]
    assert "times" not in last  # one process takes as long
    assert "times" in step_answer([*rows[:-1], step_row("one_process", 0.2)])
