"""The report of a scaling study says what the study holds, verdict first, and needs nothing else."""

import re
import shlex
from dataclasses import replace
from html import unescape
from itertools import pairwise

import pytest

from samestep.report.scaling.figures import time_lines
from samestep.report.scaling.page import render
from samestep.report.scaling.rows import loss_words, ranks
from samestep.report.scaling.series import kinds
from samestep.report.scaling.text import study_text
from samestep.scaling.conclude import conclude
from samestep.scaling.study import Loss, Study
from samestep.scaling.times import UNIT, Time, from_times
from support.outline import Outline
from support.studies import point, study

TIMES = Study(target="times.csv", unit=UNIT, points=from_times([(1, 100.0), (2, 52.0), (4, 30.0)]))


@pytest.fixture(scope="module")
def plain():
    return study()


@pytest.fixture(scope="module")
def mixed():
    return study(workers=(1, 2, 4), modes=("strong", "weak"), variants=("sync=ddp", "sync=flat"))


def texts(of):
    return " ".join(Outline(render(of)).texts).replace("\N{NO-BREAK SPACE}", " ")


def test_a_page_is_well_formed_and_needs_nothing_else(plain):
    text = render(plain)
    outline = Outline(text)
    assert outline.refers == ["data:,"]
    assert "script" not in outline.tags
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert outline.tags.count("figure") == 5


def test_a_pattern_that_is_referred_to_is_there(plain):
    text = render(plain)
    wanted = set(re.findall(r"url\(#(\w+)\)", text))
    assert wanted
    assert all(text.count(f'id="{name}"') == 1 for name in wanted)


def test_the_verdict_stands_before_any_figure(plain):
    text = re.sub(r"</?span[^>]*>", "", render(plain)).replace("\N{NO-BREAK SPACE}", " ")
    first = min(text.index("<figure"), text.index("<table"))
    assert text.index(plain.verdict.manager) < text.index(plain.verdict.engineer) < first


def test_every_figure_of_a_point_is_told_and_what_it_was_measured_on(plain):
    said = texts(plain)
    for one in plain.points:
        assert f"{one.speedup:.2f}x" in said
        assert f"{one.samples_per_second:,.0f}" in said
    for fact in ("AMD EPYC 7763", "samestep scale train.py -n 1,2,4,8", "warm up", "2.13.0", "128 GiB"):
        assert fact in said
    assert all(fit.words in said for fit in plain.fit)
    assert all(note in said for note in plain.notes)


def test_every_picture_is_told_to_those_who_do_not_see_it(plain):
    outline = Outline(render(plain))
    assert len(outline.labels) == 5
    told = (label.replace("\N{NO-BREAK SPACE}", " ") for label in outline.labels)
    speedup, throughput, efficiency, steps, line = told
    assert "3.11x at 4 workers" in speedup
    assert "4 workers 7,950 samples/s" in throughput
    assert "78 % at 4 workers" in efficiency
    assert "4 workers 32.2 ms" in steps
    assert "rank 7: " in line


def test_what_a_study_holds_is_text_and_nothing_else():
    hostile = study(
        target="<img src=x onerror=y>", notes=("<script>alert(1)</script>",), machine={"<b>": "<i>"}
    )
    outline = Outline(render(hostile))
    assert not {"img", "script", "b>", "i"} & set(outline.tags)
    assert "<img src=x onerror=y>" in outline.texts


def test_modes_and_variants_are_told_apart_without_colour(mixed):
    text = render(mixed)
    assert [kind.letter for kind in kinds(mixed)] == ["a", "b", "c", "d"]
    assert "d: weak scaling, sync=flat" in " ".join(Outline(text).texts)
    speedup = text.split("<figcaption>")[1]
    shapes = {re.sub(r"[\d.,-]+", "", path) for path in re.findall(r'class="point c\d" d="([^"]+)"', speedup)}
    assert len(shapes) == 4
    throughput = text.split("<figcaption>")[2]
    assert set(re.findall(r'class="tick x"[^>]*>([a-z])<', throughput)) == set("abcd")


def test_one_kind_needs_no_letter(plain):
    assert [kind.letter for kind in kinds(plain)] == [""]


def test_weak_scaling_is_against_an_ideal_of_its_own(mixed):
    weak = kinds(mixed)[2]
    assert weak.points[-1].speedup > 3.5 > kinds(mixed)[0].points[-1].speedup


def test_worth_is_a_yes_or_no_for_each_number_of_workers(plain):
    said = texts(plain)
    assert "Worth it, from 70 % efficiency on?" in said
    assert re.search(r"4 workers\s+78 %: yes", said)
    assert re.search(r"8 workers\s+60 %: no", said)
    assert not re.search(r"1 worker\s+100 %: ", said)  # what the others are compared with
    assert "Worth it" not in texts(study(bar=None))


def test_an_interval_leaves_something_open_only_where_there_is_one():
    once = texts(conclude(TIMES, 0.8))
    assert re.search(r"2 workers\s+96 %: yes, though without several runs nobody can tell how sure", once)
    wide = from_times([(1, 100.0), (1, 103.0), (2, 62.0), (2, 64.0)])
    assert "yes, though the interval leaves it open" in texts(conclude(replace(TIMES, points=wide), 0.8))


def test_worth_is_unknown_where_nothing_can_be_told():
    wild = from_times([(1, 100.0), (1, 160.0), (2, 52.0), (2, 90.0)])
    beyond = from_times([(1, 100.0), (2, 30.0)])
    for points in (wild, beyond):
        told = conclude(replace(TIMES, points=points), 0.8)
        assert re.search(r"2 workers\s+\d+ %: unknown", texts(told))
        assert re.search(r" 2 .* unknown$", study_text(told), re.MULTILINE)


def test_the_ideal_is_worth_it_too():
    ideal = conclude(replace(TIMES, points=from_times([(1, 100.0), (2, 50.0)])), 0.8)
    assert re.search(r"2 workers\s+100 %: yes, ", texts(ideal))


def test_times_alone_make_a_page_of_what_they_say():
    text = render(conclude(TIMES, 0.8))
    outline = Outline(text)
    assert outline.tags.count("figure") == 3
    assert "The parts of a step" not in outline.texts
    said = " ".join(outline.texts)
    assert "3.33x" in said
    assert "runs/h" in said
    assert re.search(r"4 +30 +3\.33x +83", study_text(conclude(TIMES)))  # seconds, as they were given


def test_the_interval_of_seconds_is_that_of_the_rates_upside_down():
    repeats = [(1, 100.0), (1, 102.0), (2, 52.0), (2, 50.0)]
    text = study_text(conclude(replace(TIMES, points=from_times(repeats))))
    low, high = re.search(r"2 +52 +([\d.]+) to ([\d.]+)", text).groups()
    assert float(low) < 50 < 52 < float(high)


def test_the_seconds_of_weak_runs_are_told_as_they_were_given():
    weak = from_times([(1, 100.0), Time(2, 104.0, is_weak=True), Time(4, 110.0, is_weak=True)])
    text = study_text(conclude(replace(TIMES, points=weak)))
    assert re.search(r"4 +110 +3\.64x +91", text)
    assert "The work grew with the workers: speedups count work, not runs." in text


def test_a_study_without_a_point_says_so():
    nothing = Study(target="train.py", notes=("2 workers failed.",))
    assert "Nothing was measured." in texts(nothing)
    assert study_text(nothing) == "train.py\n\nNothing was measured.\n\n2 workers failed."


def test_where_nothing_follows_the_page_begins_with_why():
    for bare in (Study(target="x", notes=("2 workers failed.",)), study(workers=(1,), notes=("2 failed.",))):
        head, rest = render(bare).split("</header>")
        assert bare.notes[0] in head
        assert bare.notes[0] not in rest


def test_models_are_told_with_the_kind_that_they_are_of(mixed):
    said = texts(mixed)
    assert "a: strong scaling, sync=ddp: Amdahl: " in said
    assert "b: strong scaling, sync=flat: Amdahl: " in said


def test_page_and_terminal_say_whether_the_batch_stayed_or_grew(plain, mixed):
    assert '<p class="sub">strong scaling</p>' in render(plain)
    assert '<p class="sub">a: strong scaling, sync=ddp; b: strong scaling, sync=flat; c: weak' in render(
        mixed
    )
    compared = study(variants=("sync=ddp", "sync=flat"))
    assert '<p class="sub">strong scaling; a: sync=ddp; b: sync=flat</p>' in render(compared)
    assert "strong scaling.\na: sync=ddp.\nb: sync=flat.\n" in study_text(compared)


def test_of_one_number_of_workers_no_speedup_is_told():
    alone = study(workers=(2,))
    page = render(alone)
    for told in (page.partition("What the words mean")[0], study_text(alone)):
        assert "efficiency" not in told
        assert "2.00x" not in told
    assert "Speedup against" not in page


def test_the_time_of_all_workers_has_the_unit_that_suits_it():
    assert re.search(r"21\.6 s\s+workers' time per epoch\s+all together", texts(study(workers=(1, 2))))


def test_an_interval_that_says_nothing_is_not_told_by_its_ends():
    wild = study(points=(point(1), point(2, samples_per_second_low=120.5, samples_per_second_high=158_101.0)))
    for said in (texts(wild), study_text(wild)):
        assert "unknown" in said
        assert "158,101" not in said


def test_a_rank_that_waits_for_data_is_said_to():
    slow = Loss(cause="straggler", share=0.6, phase="data", rank=1)
    assert loss_words(slow) == "rank 1 waits for data (60 %)"
    assert "rank 3, slow in forward (" in study_text(study(workers=(1, 4), slow="forward"))


def test_what_the_points_follow_is_told_on_a_terminal_too(plain, mixed):
    for said in (texts(plain), study_text(plain)):
        assert all(fit.words in said for fit in plain.fit)
        assert "The knee was not reached with 8 workers." in said
    assert "d: weak scaling, sync=flat: Gustafson: " in study_text(mixed)
    assert re.search(r"memory each +workers' time per epoch", study_text(plain))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({1: 100, 2: 55, 4: 32, 8: 30}, "The knee is at 4 workers"),
        ({1: 100, 2: 70, 4: 49}, "Probably the knee "),
    ],
)
def test_the_knee_is_told_as_sure_as_it_is_whatever_the_bar(seconds, said):
    rows = [(n, taken * by) for n, taken in seconds.items() for by in (0.98, 1, 1.02)]
    assert said in study_text(conclude(replace(TIMES, points=from_times(rows)), 0.5))


def test_where_the_knee_is_cannot_always_be_told():
    wild = from_times([(1, 100.0), (1, 300.0), (2, 70.0), (2, 200.0)])
    assert "knee is inconclusive" in study_text(conclude(replace(TIMES, points=wild)))
    assert "knee" not in study_text(conclude(replace(TIMES, points=from_times([(1, 100.0), (2, 30.0)]))))


def test_a_flag_is_not_broken_at_its_hyphens():
    text = render(study(notes=("Try --loader-workers 4; a-b, and --compare sync=flat.",)))
    flag = '<span class="flag">{}</span>'.format
    assert f"Try {flag('--loader-workers')} 4; a-b, and {flag('--compare')} sync=flat." in text
    assert "samestep scale train.py -n" in text
    assert "<title>Scaling study: train.py --epochs 3</title>" in text


def test_a_page_tells_how_gradients_are_exchanged():
    told = study(points=(point(1), point(2, sync="bucketed", backend="nccl", exchange_bytes=58_500)))
    assert "bucketed over nccl" in texts(told)
    assert "global batch exchange gradients" in texts(told)
    assert "58.5 kB" in texts(told)
    assert "global batch exchange" not in texts(study())


def test_the_command_can_be_copied():
    command = ["samestep", "scale", "train.py", "--fmt", "%d  %m 5 % x", "--two", "a\nb"]
    text = render(study(command=tuple(command), target="train.py --fmt '%d 5 % x'"))
    copied = re.search(r'<pre class="command">(.*?)</pre>', text, re.DOTALL)[1]
    assert shlex.split(unescape(copied)) == command
    assert "<h1>train.py --fmt &#x27;%d 5 % x&#x27;</h1>" in text
    assert "<title>Scaling study: train.py --fmt &#x27;%d 5 % x&#x27;</title>" in text


def test_a_single_number_of_workers_has_a_page():
    assert "samples/s" in texts(study(workers=(1,)))


def test_more_workers_than_cores_are_hollow_and_said():
    crowded = study(points=(point(1), point(2), point(4, oversubscribed=True)))
    text = render(crowded)
    assert text.count("point hollow c0") == 2  # in speedup and efficiency
    assert "oversubscribed" in " ".join(Outline(text).texts)
    assert kinds(crowded)[0].largest.workers == 2


def test_of_many_ranks_those_are_shown_that_others_wait_for():
    many = study(workers=(1, 40))
    (line,) = time_lines(many)
    names = [row.name for row in line.rows]
    assert len(names) == 16
    assert names[0] == "rank 0"
    assert names[-1] == "rank 39"  # the slow one
    assert "24 faster ranks are left out." in line.note
    assert "Those waited for the most, 16 of 40 workers" in texts(many)


def test_waiting_for_a_rank_is_no_exchange(plain):
    steps = render(plain).split("<figcaption>")[4]
    assert "waiting for other ranks" in steps
    assert "exposed exchange" in steps


def test_on_the_time_line_too_what_is_more_than_the_exchange_is_waiting():
    (line,) = time_lines(study(workers=(1, 4), slow="forward"))
    lengths = [{line.kinds[span.kind][1]: span.end - span.begin for span in row.spans} for row in line.rows]
    assert "waiting for other ranks" not in lengths[3]  # the slow one
    for one in lengths[:3]:
        assert one["exposed exchange"] == pytest.approx(lengths[3]["exposed exchange"])
        assert one["waiting for other ranks"] == pytest.approx(lengths[3]["forward"] - one["forward"])


def test_of_each_rank_too_waiting_is_told_from_the_exchange():
    head, rows = ranks(study(workers=(1, 4), slow="forward").points[-1])
    exchange, waiting = head.index("exposed exchange"), head.index("waiting for other ranks")
    assert [row[waiting] for row in rows] == ["2.25 ms"] * 3 + ["0 s"]
    assert {row[exchange] for row in rows} == {"3.9 ms"}


def test_far_numbers_of_workers_do_not_hide_the_near_ones():
    wide = render(study(workers=(1, 2, 4, 8, 16, 32, 64)))
    places = [
        float(x) for x in re.findall(r'class="point c0" d="M([\d.]+),', wide.split("<figcaption>")[1])[1:]
    ]
    apart = [later - sooner for sooner, later in pairwise(places)]
    assert max(apart) == pytest.approx(min(apart), abs=0.2)


def test_figures_that_are_not_known_are_left_out(plain):
    bare = tuple(
        replace(one, samples_per_second_low=None, samples_per_second_high=None, memory_bytes=None, runs=())
        for one in plain.points
    )
    said = texts(conclude(replace(plain, points=bare)))
    assert "None" not in said
    assert "memory each" not in said


def test_a_terminal_gets_table_picture_and_verdict_in_ascii(plain):
    text = study_text(plain)
    lines = text.splitlines()
    assert text.isascii()
    (head,) = (line for line in lines if line.startswith("workers"))
    assert re.split(r"  +", head)[:4] == ["workers", "samples/s", "95 % interval", "speedup"]
    (row,) = (line for line in lines if re.match(r" +4 +7,950", line))
    assert re.search(r"3\.11x +78 % +32\.2 ms +429 MiB +25\.2 s +yes +exposed exchange \(12 %\)", row)
    assert plain.verdict.manager in lines
    assert plain.verdict.engineer in lines


@pytest.mark.parametrize("width", [80, 64])
def test_lines_fit_the_terminal_and_lose_nothing_but_columns(mixed, width):
    whole, text = study_text(mixed), study_text(mixed, width)

    assert max(map(len, whole.splitlines())) > 2 * width
    assert max(map(len, text.splitlines())) <= max(width, 73)  # pictures have a length of their own
    flat = " ".join(text.split())
    assert mixed.verdict.engineer in flat
    assert "4 a lost most to: exposed exchange" in flat
    assert re.search(r"^ +4  a +[\d,.]+ .* +3\.\d+x +\d+ %", text, re.MULTILINE)
    assert not any(line.endswith("-") or line.startswith("%") for line in text.splitlines())


def test_the_picture_is_in_proportion_to_the_ideal(plain):
    bars = [line for line in study_text(plain).splitlines() if re.search(r"x of \d+$", line)]
    assert [bar.count("#") + bar.count(".") - bar.split("  ")[-1].count(".") for bar in bars] == [
        6,
        12,
        24,
        48,
    ]
    assert bars[-1].count("#") == round(48 * plain.points[-1].speedup / 8)
