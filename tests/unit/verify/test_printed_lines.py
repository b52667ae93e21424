"""Numbers that are results are compared, measurements are not, and lines of other words are found."""

from dataclasses import replace

import pytest

from samestep.verify.printed_lines import deviating_numbers, deviating_text, last_lines, of_progress
from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, Step, Trace


def printed(text, *, replicated=False, size=1):
    facts = Facts(rank=0, epsilon=1e-7, printed=f"{text}\n")
    traces = [Trace(replace(facts, rank=rank), [], 0) for rank in range(size)]
    return RunRecord(traces, runs_once=replicated)


def numbers(reference, run, control=None):
    found = deviating_numbers(printed(reference), printed(run, size=2), printed(control or reference))
    return [(one.line, one.usual) for one in found]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch: [0][ 10/100] Time 0.123 (0.130) Data 0.014 (0.020)",
        "samples_per_sec: 161.4",
        "tokens/s: 1234",
        "{'train_runtime': 12.5, 'train_samples_per_second': 31.25}",
        "step_ms=41.5",
        "ips 812.5",
        "fps: 31.2",
        "| lr 0.1 | ms/batch 216.80",
        "elapsed_time: 8.25",
        "seconds: 12.3",
        "duration_s=12.3",
        "trainRuntime 12.5",
        "took 41.2 ms",
        "812.5 img/s",
        "1.31 s/it",
        "max mem: 1234.5",
        "GPU memory 3.1 GB",
        "[00:01<00:09]",
        "2026-11-23 12:31:07,125 INFO",
        "took   9.87s",
        "980 kB",
    ],
)
def test_measurements_are_no_results(line):
    digits = str.maketrans("123456789", "987654321")
    other = line if "lr 0.1" not in line else line.replace("216.80", "893.20")
    if other == line:
        other = line.translate(digits).replace("[9", "[0").replace("[0][ 90/900]", "[0][ 10/100]")
    assert other != line
    assert numbers(line, other) == []


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("loss 0.5123", "loss 0.6123"),
        ("Time 0.123 Loss 1.5", "Time 0.993 Loss 1.9"),
        ("accuracy: 0.0", "accuracy: 4.0"),
        ("loss 0.5 min 0.3", "loss 0.9 min 0.3"),
        ("val_acc=0.75, s=3", "val_acc=0.50, s=3"),
        ("data 0.25", "data 0.75"),
        ("perplexity 31.", "perplexity 38."),
        ("MS-SSIM 0.53", "MS-SSIM 0.71"),
        ("memory_loss=0.53", "memory_loss=0.71"),
        ("recall 0.53 h", "recall 0.71 h"),
        ("acc 0.53 min", "acc 0.71 min"),
        ("correct    19.50", "correct     9.75"),
        ("loss 1.0", "loss nan"),
    ],
)
def test_results_are_compared(line, other):
    assert numbers(line, other) == [(other, line)]


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("log to run_2026-11-30_09-58-50", "log to run_2026-11-30_10-01-07"),
        ("log to runs/Nov30_09-58-50_host", "log to runs/Nov30_10-01-07_host"),
        ("log to 20261130-0958", "log to 20261130-1001"),
        ("2026/11/30 09:58:50.125", "2026/11/30 10:01:07.004"),
        ("complete in 0m 59s", "complete in 1m 2s"),
        ("took 59.5s", "took 1m 1.5s"),
        ("2s 12ms/step - loss: 0.5", "3s 13ms/step - loss: 0.5"),
        ("1,234 samples/s", "934 samples/s"),
        ("tokens/s: 1,234.5", "tokens/s: 934.5"),
        ("999 it/s", "1.2k it/s"),
        ("time (s): 0.1", "time (s): 0.3"),
        ("peak_mem_gb 1.2", "peak_mem_gb 1.4"),
        ("mem_used=1.2", "mem_used=1.4"),
        ("cpu 34%, RAM: 51%", "cpu 84%, RAM: 55%"),
        ("pid=123, minutes 0.1, eta 3", "pid=988, minutes 0.2, eta 5"),
    ],
)
def test_stamps_durations_and_rates_of_any_length_are_no_results(line, other):
    assert numbers(line, other) == []
    assert text(line, other) is None


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("┃ loss   ┃ acc  ┃ time ┃", "│ {} │ 0.60 │ {} │"),
        ("loss,epoch,time (s)", "{},3,{}"),
        ("| loss | set | step time |\n|---|---|---|", "| {} | val | {} |"),
        ("loss  epoch  seconds", "{}      3     {}"),
    ],
)
def test_the_head_of_a_table_names_measurements(head, row):
    usual = f"{head}\n{row.format('0.50', '0.06')}"
    assert numbers(usual, f"{head}\n{row.format('0.50', '0.54')}") == []
    assert len(numbers(usual, f"{head}\n{row.format('0.70', '0.06')}")) == 1


def test_words_above_a_sentence_are_no_head_of_a_table():
    usual, other = (f"start of training time\nepoch 1 loss {loss}" for loss in ("0.50", "0.70"))
    assert len(numbers(usual, other)) == 1


def test_numbers_between_commas_are_results():
    assert numbers("right 1,100,200", "right 1,300,200") == [("right 1,300,200", "right 1,100,200")]


def test_a_deviation_is_at_most_twice_the_larger_number():
    (found,) = deviating_numbers(printed("hits 0.0"), printed("hits 4.0", size=2), printed("hits 0.0"))
    assert found.value == 1.0


def test_a_number_that_varies_in_most_lines_on_one_worker_is_measured():
    lines, again, other = ("\n".join(f"queue {k + shift}.5" for k in range(6)) for shift in (3, 4, 9))
    assert numbers(lines, other, again) == []
    assert len(numbers(lines, other)) == 6


def text(reference, run, control=None):
    return deviating_text(printed(reference), printed(run), printed(control or reference))


def test_lines_of_other_words_are_found():
    assert text("start\nloss 1.0\nbest model\nend", "start\nloss 1.0\nno better\nend") == (
        "best model",
        "no better",
    )
    assert text("start\nsaved\nend", "start\nend") == ("saved", "")
    assert text("start\nend", "start\nsaved\nend") == ("", "saved")
    assert text("loss 1.0\nend", "loss 2.0\nend") is None


def test_a_colored_number_is_a_number():
    usual, rounded, other = (f"loss \x1b[1;32m{loss}\x1b[0m" for loss in ("0.250000", "0.250001", "0.350000"))
    assert text(usual, rounded) is None
    assert numbers(usual, rounded) == []
    assert numbers(usual, other) == [("loss 0.350000", "loss 0.250000")]


def unfinished(text):
    """A run that has printed this text when it is stopped."""
    run = printed(text)
    return replace(
        run, traces=[replace(trace, facts=replace(trace.facts, printed=text)) for trace in run.traces]
    )


def test_a_bar_of_progress_counts_as_it_is_in_the_end():
    usual, often = "\r1/9 |#  |\r9/9 |###| loss 0.50\nend", "\r1/9 |#  |\r5/9 |## |\r9/9 |###| loss 0.50\nend"
    assert text(usual, often) is None
    assert numbers(usual, often.replace("0.50", "0.70")) == [("9/9 |###| loss 0.70", "9/9 |###| loss 0.50")]
    stopped = [unfinished(f"start\n\r1/9 |#  |{more}") for more in ("", "\r2/9 |## |")]
    assert deviating_text(*stopped, stopped[0]) is None
    assert text("1/9\r9/9\rend", "1/9\r5/9\r9/9\rend") is None


def test_the_last_lines_of_a_text_keep_their_bars_of_progress():
    bars = "\r1/9 |#  |\r9/9 |###| loss 0.50\n"
    assert last_lines(f"start\n{bars}{bars}end", f"{bars}end") == f"{bars}end"


def test_words_that_vary_on_one_worker_are_no_difference():
    assert text("run abc\nend", "run ghi\nend", "run def\nend") is None


def test_padding_and_wrapping_of_numbers_are_no_difference():
    assert text("[[ 0.1 -0.2]\n [ 0.3  0.4]]", "[[ 0.1\n  -0.2]\n [ 0.3 0.4]]") is None
    assert text("step  9 loss 1.0", "step 10 loss 1.0") is None
    assert text("took   9.87s", "took  10.42s") is None
    assert text("used 980 kB", "used 1.1 MB") is None
    assert text("<A object at 0x7f1e3>", "<A object at 0x7fa04>") is None


@pytest.mark.parametrize("token", ["1e999", "5e1234", "0e999", "1e-999", "9" * 5000, "-nan", "1e99999999999"])
def test_extreme_numbers_raise_no_error(token):
    numbers(f"hash {token}", "hash 7")
    numbers("hash 7", f"hash {token}")


@pytest.mark.parametrize(
    ("usual", "found", "expected"),
    [
        pytest.param([4.0, 2.0], [6.0, 3.3], True, id="a sum by its count"),
        pytest.param([0.5], [1.1], True, id="a sum of two means"),
        pytest.param([0.5], [0.55], True, id="a mean"),
        pytest.param([0.005, 1.0], [0.0055, 1.0], True, id="a percentage"),
        pytest.param([1.0, 2.0], [2.2, 8.0], True, id="a sum by the count of one rank"),
        pytest.param([4.0, 2.0], [6.0, 3.0], False, id="another number"),
        pytest.param([4.0, 2.0], [3.3, 6.0], False, id="another quotient"),
        pytest.param([], [], False, id="nothing"),
    ],
)
def test_a_number_that_the_ranks_combine_is_not_of_one_rank(usual, found, expected):
    reference, again = (combining(usual, "accuracy 0.500", size=1) for _ in range(2))
    (number,) = deviating_numbers(reference, combining(found, "accuracy 0.550", size=2), again)
    assert number.is_combined is expected


def combining(numbers, text, *, size):
    """A run that prints this text, and whose ranks have combined these numbers in an evaluation."""
    one = printed(text, size=size)
    facts = replace(one.facts, combined=numbers)
    return replace(one, traces=[replace(one.traces[0], facts=facts), *one.traces[1:]])


@pytest.mark.parametrize(
    ("usual", "line", "found", "expected"),
    [
        pytest.param("right 44/103", "right 22/103", [44.0], (True, True), id="a count divided by the ranks"),
        pytest.param(
            "right 44/103", "right 22/103", [], (False, True), id="of one rank, by chance its share"
        ),
        pytest.param("right 44/103", "right 40/103", [40.9], (True, False), id="a truncated mean of means"),
        pytest.param("right 44/103", "right 40/103", [31.0], (False, False), id="another number"),
    ],
)
def test_a_count_of_the_same_total_is_a_result(usual, line, found, expected):
    run = combining(found, line, size=2)
    (number,) = deviating_numbers(printed(usual), run, printed(usual))

    assert (number.is_combined, number.is_multiple) == expected


@pytest.mark.parametrize(("usual", "found"), [("54 %", "27 %"), ("55 %", "110 %"), ("84%", "42%")])
def test_a_percentage_is_a_result_also_if_it_is_a_share(usual, found):
    """Tutorials print whole percentages: those of one rank's samples, or summed, were taken for counts."""
    assert (
        len(numbers(f"accuracy on the 10000 images: {usual}", f"accuracy on the 10000 images: {found}")) == 1
    )


def test_a_share_of_the_batches_is_no_result():
    assert numbers("batch 10/100", "batch 5/50") == []
    assert numbers("samples 50", "samples 25") == []


def evaluating(*texts, size=1):
    """A run that evaluates before each step but the first, and prints one of the texts there."""
    ends = [sum(len(text) + 1 for text in texts[:k]) for k in range(len(texts) + 1)]
    steps = [Step(index=k, evaluated=[1.0] * (k > 0), printed=end) for k, end in enumerate(ends)]
    one = printed("\n".join(texts), size=size)
    return replace(one, traces=[replace(trace, steps=steps) for trace in one.traces])


@pytest.mark.parametrize(
    ("usual", "line", "expected"),
    [
        pytest.param(
            "Test [0/3] acc 0.500\nacc 0.600", "Test [0/3] acc 0.700\nacc 0.600", True, id="first batch"
        ),
        pytest.param("Test [0/3] acc 0.500", "Test [0/3] acc 0.700", False, id="no result behind it"),
        pytest.param("right 40/48 acc 0.500\nend 1", "right 40/48 acc 0.700\nend 1", False, id="a result"),
        pytest.param("[GPU0] Eval Loss 0.500", "[GPU0] Eval Loss 0.700", True, id="named rank"),
        pytest.param("Eval Loss of GPU0 0.500", "Eval Loss of GPU0 0.700", False, id="rank in a sentence"),
        pytest.param(
            *("acc 0.500 of ##[0/3]\nacc 0.600", "acc 0.700 of ##[0/3]\nacc 0.600", True),
            id="the sign of a number",
        ),
        pytest.param("Rank 0.5: loss 0.500", "Rank 0.5: loss 0.700", False, id="another number"),
    ],
)
def test_progress_of_an_evaluation_is_no_result(usual, line, expected):
    reference = evaluating(usual, usual)
    deviating = deviating_numbers(reference, evaluating(line, line, size=2), reference)
    assert deviating
    assert bool(of_progress(deviating, reference)) is expected
