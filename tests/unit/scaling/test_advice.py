"""What to try: with a number, against what is large, and first of all at the fewest workers."""

import pytest

from samestep.report.scaling.page import render
from samestep.report.scaling.text import study_text
from samestep.scaling.conclude import conclude
from samestep.scaling.measured import measured
from samestep.scaling.study import Study
from support.clocked_runs import OWN, clocked, concluded, scaled

ROOM = {"processors": 16}


def half(**more: float) -> dict[str, float]:
    return {name: seconds / 2 for name, seconds in OWN.items()} | more


def study(*runs) -> Study:
    return conclude(Study(target="digits", points=measured([run for run in runs for _ in range(3)])))


def engineer(*runs) -> str:
    return study(*runs).verdict.engineer


@pytest.mark.parametrize(
    ("kind", "header", "advised"),
    [
        ("recipe", ROOM, "Try --loader-workers 4 (or more than now)."),
        ("recipe", {}, "Try --loader-workers 1 (there are no processors for more)."),
        ("recipe", {"processors": 3}, "Try --loader-workers 2 (there are no processors for more)."),
        ("native", {"processors": None}, "Try num_workers=4 of its DataLoader (or more than now)."),
        ("native", {"processors": 4, "threads": 4, "device": "cuda"}, "Try num_workers=3 of its DataLoader"),
    ],
)
def test_so_many_processes_load_as_keep_up_with_the_rest_of_the_step(kind, header, advised):
    header = {"kind": kind, **header}
    waiting = half(data=0.14)  # of 187 ms: what takes 47 needs 4 who load

    assert advised in engineer(clocked(1, **header), clocked(2, own=waiting, **header))


def test_one_rank_that_waits_for_data_is_another_matter_than_all():
    own = [half(), half(data=0.05)]

    assert "Try another disk or host for rank 1, or --loader-workers 3 (or more than now)." in engineer(
        clocked(1, **ROOM), clocked(2, own=own, **ROOM)
    )


def test_what_costs_little_is_not_to_be_mended():
    said = engineer(clocked(1), clocked(2, own=half(), exchange=0.002))

    assert "Lost: 4 % exposed exchange." in said
    assert "Try" not in said


def test_two_things_are_tried_and_the_largest_loss_comes_first():
    both = half(data=0.03)
    said = engineer(clocked(1, **ROOM), clocked(2, own=both, exchange=0.06, **ROOM))
    assert said.endswith(
        "Try a larger --batch-size (another training); --loader-workers 2 (or more than now)."
    )

    alone = engineer(clocked(1), clocked(2, own=half(), exchange=0.06))
    assert alone.endswith("Try a larger --batch-size (another training); --compress bf16.")


def test_a_slow_serial_step_comes_before_all_that_follows_from_it():
    found = study(
        clocked(1, own=OWN | {"data": 0.2}, **ROOM),
        clocked(2, own=half(data=0.1), exchange=0.002, **ROOM),
    )
    verdict = found.verdict

    assert verdict.manager.startswith(
        "2 workers train 1.97 times as fast as one, whose step waits 68 % of its time for data (an epoch in"
    )
    assert verdict.serial.startswith(
        "The step at 1 worker waits 68 % of its time for data: speed that up first, since it makes the "
        "speedups look better. Try --loader-workers 4 (or more than now)."
    )
    for said in (study_text(found), render(found).replace("\N{NO-BREAK SPACE}", " ")):
        assert said.index("speed that up first") < said.index("2 workers: 1.97x, 99 %")


LARGER = {"recipe": "a larger --batch-size (another training)"}


@pytest.mark.parametrize(
    ("header", "advised"),
    [
        ({}, "--compress bf16"),
        ({"sync": "bucketed", "backend": "gloo"}, "--compress bf16"),
        ({"sync": "ddp", "backend": "gloo"}, "--compress fp16"),  # what Gloo can sum
        ({"sync": "ddp", "backend": "nccl"}, "--compress bf16"),
        ({"sync": "flat"}, "--compare sync=flat,ddp"),  # both refuse --compress
        ({"sync": "reference"}, "--compare sync=flat,ddp"),
        ({"sync": "flat", "variant": "sync=flat"}, ""),
        ({"sync": "reference", "variant": "sync=reference"}, ""),
        ({"variant": "compress=bf16"}, "--compare sync=bucketed,ddp"),
        ({"sync": "ddp", "config": {"compress": "fp16"}}, "--compare sync=bucketed,ddp"),
        ({"sync": "ddp", "config": {"compress": "powersgd"}}, ""),
        ({"sync": "reference", "config": {"algorithm": "ring"}}, ""),
        ({"config": {"exact": 4, "sync": "auto"}}, ""),
        ({"kind": "native", "sync": "ddp", "backend": "gloo"}, "DDP's fp16_compress_hook"),
        ({"kind": "native", "sync": "ddp", "backend": "nccl"}, "DDP's bf16_compress_hook"),
        ({"kind": "native", "sync": "ddp", "device": "cuda"}, "DDP's bf16_compress_hook"),
        ({"kind": "native", "sync": "ddp", "backend": "mpi"}, ""),
        ({"kind": "native", "sync": "by hand", "backend": "nccl"}, ""),
        ({"kind": "native", "sync": "fsdp", "backend": "nccl"}, ""),
    ],
)
def test_what_is_advised_against_an_exchange_can_be_done_there(header, advised):
    larger = LARGER.get(header.get("kind", "recipe"), "a larger batch for each worker (another training)")
    runs = [clocked(n, own=scaled(1 / n), exchange=0.05 * (n > 1), **header) for n in (1, 2)]

    said = concluded(runs).verdict.engineer

    assert f"Try {'; '.join(filter(None, [larger, advised]))}." in said


@pytest.mark.parametrize(
    ("data", "loads"), [("digits", False), ("synthetic:1x8x8,64", False), ("folder", True)]
)
def test_nobody_loads_what_lies_in_memory(data, loads):
    header = ROOM | {"config": {"data": data}}
    slow = study(clocked(1, own=OWN | {"data": 0.2}, **header), clocked(2, own=half(data=0.1), **header))
    waiting = engineer(clocked(1, **header), clocked(2, own=half(data=0.14), **header))
    one_rank = engineer(clocked(1, **header), clocked(2, own=[half(), half(data=0.05)], **header))

    assert [" Try --loader-workers" in said for said in (slow.verdict.serial, waiting)] == [loads] * 2
    assert "  " not in slow.verdict.serial
    assert ("Try another host for rank 1." in one_rank) == (not loads)
