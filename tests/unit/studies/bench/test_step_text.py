from samestep.studies.bench.step_text import step_answer, step_table
from samestep.studies.bench.step_times import StepRow


def row(sync, efficiency, exposed=0.001):
    return StepRow(
        model="convnet",
        batch_per_worker=16,
        workers=2,
        sync=sync,
        step_s=0.01 / efficiency,
        exposed_sync_s=exposed,
        efficiency=efficiency,
    )


ROWS = [row("alone", 1.0, 0.0), row("ddp", 0.8, None), row("flat", 0.97)]


def test_the_table_begins_with_the_best():
    _, *body = step_table(ROWS)

    assert [line.split()[0] for line in body] == ["alone", "flat", "ddp"]
    assert body[2].split()[-2:] == ["-", "80%"]


def test_the_answer_compares_the_best_with_ddp():
    best, _, ddp = step_answer(ROWS).partition(", ")

    assert [word for word in best.split() if word in ("flat", "2", "97%")] == ["flat", "2", "97%"]
    assert ddp.split()[-1] == "80%"
    assert step_answer([row("alone", 1.0), row("ddp", 0.8)]).count("%") == 1
