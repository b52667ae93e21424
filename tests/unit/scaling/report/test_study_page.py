"""The report of a scaling study shows the study, verdict first, and is self-contained."""

import re
import shlex
from dataclasses import replace
from html import unescape
from itertools import chain, pairwise

import pytest

from samestep.scaling.analysis.points import UNIT, Time, from_times
from samestep.scaling.analysis.study import Loss, Note, Study
from samestep.scaling.analysis.verdict import conclude
from samestep.scaling.report.page import render, summary_charts, time_lines
from samestep.scaling.report.tables import (
    COST,
    MEMORY,
    NO_POINTS,
    OVERHEAD,
    STEP,
    WORTH,
    kinds,
    loss_text,
    of_fastest,
    ranks,
    resources,
    results,
    study_text,
    worth,
)
from support.html_page import HtmlPage
from support.studies import point, study, two_cores

FAILED = Note("run-failed", "2 workers failed.", (2,))
TIMES = Study(target="times.csv", unit=UNIT, points=from_times([(1, 100.0), (2, 52.0), (4, 30.0)]))


@pytest.fixture(scope="module")
def plain():
    return study()


@pytest.fixture(scope="module")
def mixed():
    return study(workers=(1, 2, 4), modes=("strong", "weak"), variants=("sync=ddp", "sync=flat"))


def texts(of):
    return " ".join(HtmlPage(render(of)).texts).replace("\N{NO-BREAK SPACE}", " ")


def test_a_page_is_well_formed_and_self_contained(plain):
    text = render(plain)
    outline = HtmlPage(text)
    assert outline.refers == ["data:,"]
    assert "script" not in outline.tags
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert outline.tags.count("figure") == 5


def test_every_pattern_is_defined_once(plain):
    text = render(plain)
    wanted = set(re.findall(r"url\(#(\w+)\)", text))
    assert wanted
    assert all(text.count(f'id="{name}"') == 1 for name in wanted)


def test_the_verdict_stands_before_any_figure(plain):
    text = re.sub(r"</?span[^>]*>", "", render(plain)).replace("\N{NO-BREAK SPACE}", " ")
    first = min(text.index("<figure"), text.index("<table"))
    assert text.index(plain.verdict.sentence) < first


def test_every_number_of_a_point_and_the_machine_are_shown(plain):
    shown = texts(plain)
    for one in plain.points:
        assert f"{one.speedup:.2f}x" in shown
        assert f"{one.samples_per_second:,.0f}" in shown
    for fact in ("AMD EPYC 7763", "samestep scale train.py -n 1,2,4,8", "warm up", "2.13.0", "128 GiB"):
        assert fact in shown
    assert all(note.text in shown for note in plain.notes)


def test_every_chart_has_a_description_for_screen_readers(plain):
    outline = HtmlPage(render(plain))
    assert len(outline.labels) == 5
    labels = (label.replace("\N{NO-BREAK SPACE}", " ") for label in outline.labels)
    speedup, throughput, efficiency, steps, line = labels
    assert "3.11x at 4 workers" in speedup
    assert "4 workers 7,950 samples/s" in throughput
    assert "78 % at 4 workers" in efficiency
    assert "4 workers 32.2 ms" in steps
    assert "rank 7: " in line


def test_the_ideal_is_named_where_a_bar_is_below_it(plain):
    def notes(one):
        return next(chart.note for chart in summary_charts(one) if chart.stem() == "throughput")

    alone = replace(plain, points=plain.points[:1])
    assert 'class="gap"' in render(plain)
    assert notes(plain)
    assert 'class="gap"' not in render(alone)
    assert not notes(alone)


def test_text_of_a_study_is_escaped():
    hostile = study(
        target="<img src=x onerror=y>",
        notes=(Note("x", "<script>alert(1)</script>"),),
        machine={"<b>": "<i>"},
    )
    outline = HtmlPage(render(hostile))
    assert not {"img", "script", "b>", "i"} & set(outline.tags)
    assert "<img src=x onerror=y>" in outline.texts


def test_modes_and_variants_differ_in_letter_and_shape(mixed):
    text = render(mixed)
    assert [kind.letter for kind in kinds(mixed)] == ["a", "b", "c", "d"]
    assert "d: weak scaling, sync=flat" in " ".join(HtmlPage(text).texts)
    speedup = text.split("<figcaption>")[1]
    shapes = {re.sub(r"[\d.,-]+", "", path) for path in re.findall(r'class="point c\d" d="([^"]+)"', speedup)}
    assert len(shapes) == 4
    throughput = text.split("<figcaption>")[2]
    assert set(re.findall(r'class="tick x"[^>]*>([a-z])<', throughput)) == set("abcd")


def test_variants_are_compared_with_the_fastest_on_as_many_workers(mixed, plain):
    strong = [one for one in mixed.points if one.mode == "strong"]
    ddp, flat = (
        next(one for one in strong if (one.workers, one.variant) == (4, f"sync={name}"))
        for name in ("ddp", "flat")
    )
    assert of_fastest(mixed, ddp) == "1.00x"
    assert re.fullmatch(r"0\.\d\dx \(0\.\d\dx to 0\.\d\dx\)", of_fastest(mixed, flat))
    assert not any(of_fastest(plain, one) for one in plain.points)


def test_one_kind_needs_no_letter(plain):
    assert [kind.letter for kind in kinds(plain)] == [""]


def test_weak_scaling_has_its_own_baseline(mixed):
    weak = kinds(mixed)[2]
    assert weak.points[-1].speedup > 3.5 > kinds(mixed)[0].points[-1].speedup


def test_worth_is_a_yes_or_no_for_each_number_of_workers(plain):
    assert [worth(plain, one) for one in plain.points] == ["", "yes", "yes", "no"]
    assert WORTH in texts(plain)
    assert WORTH not in texts(study(bar=None))


def test_an_uncertain_answer_has_a_question_mark():
    once = conclude(TIMES, 0.8)
    assert worth(once, once.points[1]) == "yes?"


def test_worth_is_unknown_if_the_measurement_is_inconclusive():
    wild = from_times([(1, 100.0), (1, 160.0), (2, 52.0), (2, 90.0)])
    beyond = from_times([(1, 100.0), (2, 30.0)])
    for points in (wild, beyond):
        found = conclude(replace(TIMES, points=points), 0.8)
        assert worth(found, found.points[1]) == "unknown"
        assert re.search(r" 2 .* unknown$", study_text(found), re.MULTILINE)


def test_an_ideal_speedup_is_worth_it():
    ideal = conclude(replace(TIMES, points=from_times([(1, 100.0), (2, 50.0)])), 0.8)
    assert worth(ideal, ideal.points[1]) == "yes?"


def test_times_alone_make_a_page_without_phases():
    text = render(conclude(TIMES, 0.8))
    outline = HtmlPage(text)
    assert outline.tags.count("figure") == 3
    assert "Phases of a step" not in outline.texts
    shown = " ".join(outline.texts)
    assert "3.33x" in shown
    assert "runs/h" in shown
    assert re.search(r"4 +30 +3\.33x +83", study_text(conclude(TIMES)))  # seconds as given


def test_the_interval_of_seconds_is_the_inverse_of_that_of_rates():
    repeats = [(1, 100.0), (1, 102.0), (2, 52.0), (2, 50.0)]
    text = study_text(conclude(replace(TIMES, points=from_times(repeats))))
    low, high = re.search(r"2 +52 +([\d.]+) to ([\d.]+)", text).groups()
    assert float(low) < 50 < 52 < float(high)


def test_the_seconds_of_weak_runs_are_shown_as_given():
    weak = from_times([(1, 100.0), Time(2, 104.0, is_weak=True), Time(4, 110.0, is_weak=True)])
    text = study_text(conclude(replace(TIMES, points=weak)))
    assert re.search(r"4 +110 +3\.64x +91", text)


def test_a_study_without_a_point_has_no_table():
    nothing = Study(target="train.py", notes=(FAILED,))
    assert NO_POINTS in texts(nothing)
    assert study_text(nothing) == f"train.py\n\n{NO_POINTS}\n\n2 workers failed."


def test_a_page_without_a_conclusion_begins_with_the_notes():
    for bare in (Study(target="x", notes=(FAILED,)), study(workers=(1,), notes=(FAILED,))):
        head, rest = render(bare).split("</header>")
        assert FAILED.text in head
        assert FAILED.text not in rest


def test_page_and_terminal_show_the_mode(plain, mixed):
    assert '<p class="sub">strong scaling</p>' in render(plain)
    assert '<p class="sub">a: strong scaling, sync=ddp; b: strong scaling, sync=flat; c: weak' in render(
        mixed
    )
    compared = study(variants=("sync=ddp", "sync=flat"))
    assert '<p class="sub">strong scaling; a: sync=ddp; b: sync=flat</p>' in render(compared)
    assert "strong scaling.\na: sync=ddp.\nb: sync=flat.\n" in study_text(compared)


def test_one_number_of_workers_has_no_speedup():
    alone = study(workers=(2,))
    page = render(alone)
    for shown in (page.partition("<h2>Terms</h2>")[0], study_text(alone)):
        assert "efficiency" not in shown
        assert "2.00x" not in shown
    assert "Speedup against" not in page


def test_the_time_of_all_workers_has_a_readable_unit():
    assert re.search(r"workers' time per epoch.*21\.6 s", texts(study(workers=(1, 2))))


def test_a_very_wide_interval_is_in_the_table_as_in_the_charts():
    wild = study(points=(point(1), point(2, samples_per_second_low=120.5, samples_per_second_high=158_101.0)))
    for shown in (texts(wild), study_text(wild)):
        assert "120.5 to 158,101" in shown


def test_the_page_has_the_intervals_of_speedups_that_the_chart_draws():
    page = texts(two_cores())
    chart = next(one for one in summary_charts(two_cores()) if one.title == "Speedup")
    drawn = [one for one in chain.from_iterable(chart.lines.values()) if one.low < one.high]
    assert len(drawn) == 2
    assert all(f"{one.y:.2f}x ({one.low:.2f}x to {one.high:.2f}x)" in page for one in drawn)


def test_the_overhead_is_the_last_of_the_columns_of_speed(plain):
    head, rows = results(plain)
    assert head[-1] == OVERHEAD
    assert all(len(row) == len(head) for row in rows)
    assert not {STEP, MEMORY, COST} & set(head)
    assert {STEP, MEMORY, COST} < set(resources(plain)[0])
    assert resources(conclude(TIMES)) == ([], [])


def test_a_slow_rank_is_shown_with_its_phase():
    slow = Loss(cause="straggler", share=0.6, phase="data", rank=1)
    assert loss_text(slow) == "rank 1 waits for data (60 %)"
    assert "rank 3, slow in forward (" in study_text(study(workers=(1, 4), slow="forward"))


def test_a_flag_has_no_line_break():
    text = render(study(notes=(Note("x", "Try --loader-workers 4; a-b, and --compare sync=flat."),)))
    flag = '<span class="flag">{}</span>'.format
    assert f"Try {flag('--loader-workers')} 4; a-b, and {flag('--compare')} sync=flat." in text
    assert "samestep scale train.py -n" in text
    assert "<title>Scaling study: train.py --epochs 3</title>" in text


def test_a_page_shows_the_gradient_synchronization():
    found = study(points=(point(1), point(2, sync="bucketed", backend="nccl", exchange_bytes=58_500)))
    assert "bucketed over nccl" in texts(found)
    assert "global batch synchronization gradients" in texts(found)
    assert "58.5 kB" in texts(found)
    assert "synchronization" not in texts(study())


def test_the_command_can_be_copied():
    command = ["samestep", "scale", "train.py", "--fmt", "%d  %m 5 % x", "--two", "a\nb"]
    text = render(study(command=tuple(command), target="train.py --fmt '%d 5 % x'"))
    copied = re.search(r'<pre class="command">(.*?)</pre>', text, re.DOTALL)[1]
    assert shlex.split(unescape(copied)) == command
    assert "<h1>train.py --fmt &#x27;%d 5 % x&#x27;</h1>" in text
    assert "<title>Scaling study: train.py --fmt &#x27;%d 5 % x&#x27;</title>" in text


def test_oversubscribed_points_are_hollow_and_labeled():
    oversubscribed = study(points=(point(1), point(2), point(4, oversubscribed=True)))
    text = render(oversubscribed)
    assert text.count("point hollow c0") == 2  # in speedup and efficiency
    assert "oversubscribed" in " ".join(HtmlPage(text).texts)
    assert kinds(oversubscribed)[0].largest.workers == 2


def test_the_slowest_of_many_ranks_are_shown():
    many = study(workers=(1, 40))
    (line,) = time_lines(many)
    names = list(line.rows)
    assert len(names) == 16
    assert names[0] == "rank 0"
    assert names[-1] == "rank 39"  # the slow one
    assert re.findall(r"\d+", line.note) == ["24"]
    assert re.search(r"\b16 of 40 workers", texts(many))


def test_waiting_for_a_rank_is_separate_from_communication(plain):
    steps = render(plain).split("<figcaption>")[4]
    assert "waiting for other ranks" in steps
    assert "exposed communication" in steps


def test_the_time_line_separates_waiting_from_communication():
    (line,) = time_lines(study(workers=(1, 4), slow="forward"))
    lengths = [
        {line.kinds[span.kind][1]: span.end - span.begin for span in spans} for spans in line.rows.values()
    ]
    assert "waiting for other ranks" not in lengths[3]  # the slow one
    for one in lengths[:3]:
        assert one["exposed communication"] == pytest.approx(lengths[3]["exposed communication"])
        assert one["waiting for other ranks"] == pytest.approx(lengths[3]["forward"] - one["forward"])


def test_the_table_of_ranks_separates_waiting_from_communication():
    head, rows = ranks(study(workers=(1, 4), slow="forward").points[-1])
    exchange, waiting = head.index("exposed communication"), head.index("waiting for other ranks")
    assert [row[waiting] for row in rows] == ["2.25 ms"] * 3 + ["0 s"]
    assert {row[exchange] for row in rows} == {"3.9 ms"}


def test_distant_numbers_of_workers_have_equal_distances():
    wide = render(study(workers=(1, 2, 4, 8, 16, 32, 64)))
    places = [
        float(x) for x in re.findall(r'class="point c0" d="M([\d.]+),', wide.split("<figcaption>")[1])[1:]
    ]
    apart = [later - sooner for sooner, later in pairwise(places)]
    assert max(apart) == pytest.approx(min(apart), abs=0.2)


def test_unknown_numbers_are_left_out(plain):
    bare = tuple(
        replace(one, samples_per_second_low=None, samples_per_second_high=None, memory_bytes=None, runs=())
        for one in plain.points
    )
    shown = texts(conclude(replace(plain, points=bare)))
    assert "None" not in shown
    assert "memory each" not in shown


def test_a_terminal_gets_table_bars_and_verdict_in_ascii(plain):
    text = study_text(plain)
    lines = text.splitlines()
    assert text.isascii()
    (head,) = (line for line in lines if line.startswith("workers"))
    assert re.split(r"  +", head)[:4] == ["workers", "samples/s", "95 % interval", "1 thread"]
    (row,) = (line for line in lines if re.match(r" +4 +7,950", line))
    assert re.search(r"3\.11x +78 % +32\.2 ms +429 MiB +25\.2 s +yes +exposed communication \(12 %\)", row)
    assert plain.verdict.sentence in lines


@pytest.mark.parametrize("width", [80, 64])
def test_lines_fit_the_terminal_and_only_columns_are_dropped(mixed, width):
    whole, text = study_text(mixed), study_text(mixed, width)

    assert max(map(len, whole.splitlines())) > 2 * width
    assert max(map(len, text.splitlines())) <= max(width, 73)  # bars have a fixed length
    flat = " ".join(text.split())
    assert mixed.verdict.sentence in flat
    assert f"4 a {OVERHEAD}: exposed communication" in flat
    assert re.search(r"^ +4  a +[\d,.]+ .* +3\.\d+x +\d+ %", text, re.MULTILINE)
    assert not any(line.endswith("-") or line.startswith("%") for line in text.splitlines())


def test_bars_are_in_proportion_to_the_ideal(plain):
    bars = [line for line in study_text(plain).splitlines() if re.search(r"x of \d+$", line)]
    assert [bar.count("#") + bar.count(".") - bar.split("  ")[-1].count(".") for bar in bars] == [
        6,
        12,
        24,
        48,
    ]
    assert bars[-1].count("#") == round(48 * plain.points[-1].speedup / 8)
