"""The choice of all-reduce algorithms by size is parsed, and stored per machine."""

import pytest

from samestep.base.errors import UsageError
from samestep.base.machine.description import machine
from samestep.ranks.collectives.algorithm_choice import ALGORITHMS, Crossovers, Measured, check_algorithm
from samestep.ranks.collectives.algorithms import ALL_REDUCE

MEASURED = Measured(ranks=2, hosts=1, device="cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_names_of_algorithms_equal_the_registry():
    assert set(ALGORITHMS) == set(ALL_REDUCE)


def test_each_algorithm_is_used_from_its_size_on_and_the_first_below():
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
    ("text", "value"),
    [
        ("", "''"),
        ("tre", "'tre'"),
        ("tree,ring", "'tree,ring'"),
        ("tree:4,ring:8", "'tree:4,ring:8'"),
        ("tree,ring:x", "'x'"),
        ("tree,ring:8,tree:8", "'tree,ring:8,tree:8'"),
        ("auto,ring:8", "'auto,ring:8'"),
    ],
)
def test_an_invalid_choice_is_refused_with_its_value(text, value):
    with pytest.raises(UsageError, match=f"^--algorithm {value}"):
        check_algorithm(text)


def test_a_measurement_is_loaded_for_the_same_ranks_and_hosts(tmp_path):
    path = MEASURED.save([(4, "tree"), (1 << 16, "ring")])

    assert path.is_relative_to(tmp_path)
    assert MEASURED.load() == Crossovers.parse("tree,ring:65536")
    other = Measured(ranks=2, hosts=2, device="cpu")
    other.save([(4, "native")])
    assert MEASURED.load().text == "tree,ring:65536"
    assert other.load().text == "native"


def test_a_measurement_is_not_used_on_another_cpu_model():
    here, there = (
        Measured(ranks=2, hosts=1, device="cpu", processor=f"Xeon(R) Gold {model} CPU @ 2.10GHz/x")
        for model in (6130, 6230)
    )
    path = here.save([(4, "tree")])

    assert path.name == "all-reduce-2-ranks-1-host-cpu-xeon-r-gold-6130-cpu-2.10ghz-x.json"
    with pytest.raises(UsageError, match=r"cpu \(Xeon\(R\) Gold 6230"):
        there.load()


def test_the_default_processor_is_that_of_this_machine():
    assert MEASURED.processor == machine().processor


@pytest.mark.parametrize(
    ("hosts", "command"),
    [
        (1, r"samestep bench all-reduce -n 2 --save$"),
        (3, r"samestep bench all-reduce --save$"),
    ],
)
def test_without_a_measurement_the_error_has_the_command(hosts, command):
    with pytest.raises(UsageError, match=command) as refused:
        Measured(ranks=2, hosts=hosts, device="cpu").load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"algorithm": "tre"}', '{"algorithm": 3}'])
def test_an_invalid_file_is_refused_with_its_path_and_the_command(text):
    path = MEASURED.save([(4, "tree")])
    path.write_text(text)

    with pytest.raises(UsageError, match=r"/all-reduce-2-ranks.*\.json .* -n 2 --save"):
        MEASURED.load()


def test_a_folder_that_is_not_writable_is_refused(tmp_path):
    (tmp_path / "samestep").touch()

    with pytest.raises(UsageError, match=r"^--save: .*XDG_CACHE_HOME"):
        MEASURED.save([(4, "tree")])


def test_measurements_are_stored_in_the_cache_folder_of_the_user(tmp_path):
    assert MEASURED.path().is_relative_to(tmp_path / "samestep")
