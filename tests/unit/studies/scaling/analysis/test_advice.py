"""Advice has a number, is against a large loss, and begins with the baseline."""

import pytest

from samestep.studies.scaling.analysis.points import measured
from samestep.studies.scaling.analysis.study import Study
from samestep.studies.scaling.analysis.verdict import conclude
from samestep.studies.scaling.report.page import render
from samestep.studies.scaling.report.text import study_text
from support.clocked_runs import OWN, clocked, codes, concluded, scaled

ROOM = {"processors": 16}


def half(**more: float) -> dict[str, float]:
    return {name: seconds / 2 for name, seconds in OWN.items()} | more


def study(*runs) -> Study:
    return conclude(Study(target="digits", points=measured([run for run in runs for _ in range(3)])))


def advised(*runs) -> list[tuple[str, str]]:
    """Return code and words of the advice."""
    return [(one.code, one.words) for one in study(*runs).verdict.findings if one.kind == "advice"]


@pytest.mark.parametrize(
    ("kind", "header", "setting"),
    [
        ("recipe", ROOM, "--loader-workers 4 "),
        ("recipe", {}, "--loader-workers 1 "),
        ("recipe", {"processors": 3}, "--loader-workers 2 "),
        ("native", {"processors": None}, "num_workers=4 "),
        ("native", {"processors": 4, "threads": 4, "device": "cuda"}, "num_workers=3 "),
    ],
)
def test_the_number_of_loader_workers_follows_from_the_step_and_the_cores(kind, header, setting):
    header = {"kind": kind, **header}
    waiting = half(data=0.14)  # of 187 ms: four processes load a batch in the other 47

    (one,) = advised(clocked(1, **header), clocked(2, own=waiting, **header))

    assert one[0] == "loader-workers"
    assert one[1].startswith(setting)


def test_one_rank_that_waits_for_data_has_other_advice_than_all():
    own = [half(), half(data=0.05)]

    (one,) = advised(clocked(1, **ROOM), clocked(2, own=own, **ROOM))

    assert one[0] == "other-disk"
    assert "rank 1" in one[1]
    assert "--loader-workers 3" in one[1]


def test_small_losses_have_no_advice():
    verdict = study(clocked(1), clocked(2, own=half(), comm=0.002)).verdict

    assert "4 %" in verdict.engineer
    assert codes(verdict, "advice") == []


def test_two_things_are_tried_and_the_largest_loss_is_first():
    both = advised(clocked(1, **ROOM), clocked(2, own=half(data=0.03), comm=0.06, **ROOM))
    alone = advised(clocked(1), clocked(2, own=half(), comm=0.06))

    assert [code for code, _ in both] == ["larger-batch", "loader-workers"]
    assert [code for code, _ in alone] == ["larger-batch", "compress"]


def test_a_slow_baseline_is_reported_before_its_speedups():
    found = study(
        clocked(1, own=OWN | {"data": 0.2}, **ROOM),
        clocked(2, own=half(data=0.1), comm=0.002, **ROOM),
    )
    verdict = found.verdict

    assert "whose step waits 68 % of its time for data" in verdict.manager
    assert codes(verdict, "baseline") == [("slow-phase", (1,)), ("idle-cores", (1,))]
    assert codes(verdict, "advice") == [("loader-workers", (1,))]
    assert "--loader-workers 4" in verdict.serial
    for text in (study_text(found), render(found).replace("\N{NO-BREAK SPACE}", " ")):
        assert text.index("The step at 1 worker") < text.index("2 workers: 1.97x")


@pytest.mark.parametrize(
    ("header", "code", "words"),
    [
        ({}, "compress", "--compress bf16"),
        ({"sync": "bucketed", "backend": "gloo"}, "compress", "--compress bf16"),
        ({"sync": "ddp", "backend": "gloo"}, "compress", "--compress fp16"),  # Gloo cannot sum bf16
        ({"sync": "ddp", "backend": "nccl"}, "compress", "--compress bf16"),
        ({"sync": "flat"}, "compare-sync", "--compare sync=flat,ddp"),  # both refuse --compress
        ({"sync": "reference"}, "compare-sync", "--compare sync=flat,ddp"),
        ({"sync": "flat", "variant": "sync=flat"}, "", ""),
        ({"sync": "reference", "variant": "sync=reference"}, "", ""),
        ({"variant": "compress=bf16"}, "compare-sync", "--compare sync=bucketed,ddp"),
        ({"sync": "ddp", "config": {"compress": "fp16"}}, "compare-sync", "--compare sync=bucketed,ddp"),
        ({"sync": "ddp", "config": {"compress": "powersgd"}}, "", ""),
        ({"sync": "reference", "config": {"algorithm": "ring"}}, "", ""),
        ({"config": {"exact": 4, "sync": "auto"}}, "", ""),
        ({"kind": "native", "sync": "ddp", "backend": "gloo"}, "ddp-compress-hook", "fp16_compress_hook"),
        ({"kind": "native", "sync": "ddp", "backend": "nccl"}, "ddp-compress-hook", "bf16_compress_hook"),
        ({"kind": "native", "sync": "ddp", "device": "cuda"}, "ddp-compress-hook", "bf16_compress_hook"),
        ({"kind": "native", "sync": "ddp", "backend": "mpi"}, "", ""),
        ({"kind": "native", "sync": "by hand", "backend": "nccl"}, "", ""),
        ({"kind": "native", "sync": "fsdp", "backend": "nccl"}, "", ""),
    ],
)
def test_advice_against_communication_is_possible_for_that_training(header, code, words):
    runs = [clocked(n, own=scaled(1 / n), comm=0.05 * (n > 1), **header) for n in (1, 2)]

    first, *rest = [one for one in concluded(runs).verdict.findings if one.kind == "advice"]

    assert first.code == "larger-batch"
    assert ("--batch-size" in first.words) == (header.get("kind") is None)
    assert [one.code for one in rest] == [code] * bool(code)
    assert all(words in one.words for one in rest)


@pytest.mark.parametrize(
    ("data", "loads"), [("digits", False), ("synthetic:1x8x8,64", False), ("folder", True)]
)
def test_data_in_memory_needs_no_loader_workers(data, loads):
    header = ROOM | {"config": {"data": data}}
    slow = study(clocked(1, own=OWN | {"data": 0.2}, **header), clocked(2, own=half(data=0.1), **header))
    waiting = advised(clocked(1, **header), clocked(2, own=half(data=0.14), **header))
    one_rank = advised(clocked(1, **header), clocked(2, own=[half(), half(data=0.05)], **header))

    assert codes(slow.verdict, "advice") == [("loader-workers", (1,))] * loads
    assert "  " not in slow.verdict.serial
    assert [code for code, _ in waiting] == ["loader-workers"] * loads
    assert [code for code, _ in one_rank] == ["other-disk" if loads else "other-host"]
