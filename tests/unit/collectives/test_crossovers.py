"""Which all-reduce is taken from which size on: as text, and as it is kept."""

import pytest

from samestep.base.errors import UsageError
from samestep.base.machine import machine
from samestep.collectives.algorithms import ALL_REDUCE
from samestep.collectives.crossovers import ALGORITHMS, Crossovers, Measured, check_algorithm

MEASURED = Measured(ranks=2, hosts=1, device="cpu")


def test_all_algorithms_can_be_named():
    assert set(ALGORITHMS) == set(ALL_REDUCE)


def test_each_is_taken_from_its_size_on_and_the_first_below():
    crossovers = Crossovers.parse("tree,ring:64K,native:1MiB")

    assert [crossovers.at(nbytes) for nbytes in (0, 65535, 65536, (1 << 20) - 1, 1 << 20, 1 << 40)] == [
        "tree",
        "tree",
        "ring",
        "ring",
        "native",
        "native",
    ]
    assert crossovers.text == "tree,ring:65536,native:1048576"
    assert Crossovers.parse(crossovers.text) == crossovers
    assert crossovers.describe() == "tree, ring from 64 KiB, native from 1 MiB"
    assert Crossovers.parse("ring").at(0) == "ring"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "none of native, naive"),
        ("tre", "--algorithm 'tre' is none of native, naive, tree"),
        ("tree,ring", "where one takes over from the other"),
        ("tree:4,ring:8", "where one takes over"),
        ("tree,ring:x", "--algorithm 'x'"),
        ("tree,ring:8,tree:8", "the sizes must rise"),
        ("auto,ring:8", "is none of"),
    ],
)
def test_what_is_no_choice_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        check_algorithm(text)


def test_what_was_measured_is_found_again_by_as_many_ranks_on_as_many_hosts(tmp_path):
    path = MEASURED.save([(4, "tree"), (1 << 16, "ring")], tmp_path)

    assert path.is_relative_to(tmp_path)
    assert MEASURED.load(tmp_path) == Crossovers.parse("tree,ring:65536")
    other = Measured(ranks=2, hosts=2, device="cpu")
    other.save([(4, "native")], tmp_path)
    assert MEASURED.load(tmp_path).text == "tree,ring:65536"
    assert other.load(tmp_path).text == "native"


def test_what_was_measured_on_one_kind_of_node_is_not_for_another(tmp_path):
    here, there = (
        Measured(ranks=2, hosts=1, device="cpu", processor=f"Xeon(R) Gold {model} CPU @ 2.10GHz/x")
        for model in (6130, 6230)
    )
    path = here.save([(4, "tree")], tmp_path)

    assert path.name == "all-reduce-2-ranks-1-host-cpu-xeon-r-gold-6130-cpu-2.10ghz-x.json"
    with pytest.raises(UsageError, match=r"nothing was measured for .* of cpu \(Xeon\(R\) Gold 6230"):
        there.load(tmp_path)


def test_the_kind_of_node_is_this_ones():
    assert MEASURED.processor == machine().processor


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (1, r"nothing was measured for 2 ranks on one host .* samestep bench all-reduce -n 2 --save$"),
        (3, r"2 ranks on 3 hosts .* under the same launcher, with: samestep bench all-reduce --save$"),
    ],
)
def test_where_nothing_was_measured_the_command_is_said(tmp_path, hosts, words):
    with pytest.raises(UsageError, match=words) as refused:
        Measured(ranks=2, hosts=hosts, device="cpu").load(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"algorithm": "tre"}', '{"algorithm": 3}'])
def test_a_file_that_is_none_is_said_with_the_command_that_writes_another(tmp_path, text):
    path = MEASURED.save([(4, "tree")], tmp_path)
    path.write_text(text)

    with pytest.raises(UsageError, match=r"cannot read .*\.json .* -n 2 --save"):
        MEASURED.load(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "crossovers").touch()

    with pytest.raises(UsageError, match=r"--save: cannot write .* Set XDG_CACHE_HOME"):
        MEASURED.save([(4, "tree")], tmp_path)


def test_the_users_cache_is_where_the_platform_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert MEASURED.path().is_relative_to(tmp_path / "samestep")
