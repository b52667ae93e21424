"""Scripts that read variables of Slurm or MPI get them from `samestep run`, or are refused."""

from dataclasses import replace

import pytest

from samestep.base.place import Place
from samestep.launch.source.classify import classify
from samestep.launch.source.launcher_variables import values_at, values_beside
from support.sources import written

JOINS = "import os, torch.distributed as d\nd.init_process_group('gloo', rank=int({read}))\n"
PLACE = Place(rank=3, size=4, local_rank=1, local_size=2, node=1, nodes=2)
READS_RANK_OF_SLURM = "os.environ['SLURM_PROCID']"
ALONE = Place(rank=1, size=2, local_rank=1, local_size=2)


def reads(folder, read):
    return classify(written(folder, JOINS.format(read=read))).reads


@pytest.mark.parametrize(
    ("read", "value"),
    [
        ("os.environ['SLURM_PROCID']", "3"),
        ("os.environ.get('SLURM_NTASKS', 1)", "4"),
        ("os.getenv('SLURM_LOCALID')", "1"),
        ("os.environ['SLURM_NTASKS_PER_NODE']", "2"),
        ("os.environ['SLURM_NODEID']", "1"),
        ("os.environ['SLURM_NNODES']", "2"),
        ("os.environ['OMPI_COMM_WORLD_RANK']", "3"),
        ("os.environ['OMPI_COMM_WORLD_LOCAL_RANK']", "1"),
        ("os.environ['PMI_SIZE']", "4"),
    ],
)
def test_a_variable_gets_the_value_that_its_launcher_would_set(tmp_path, read, value):
    assert list(values_at(reads(tmp_path, read), PLACE).values()) == [value]


def test_the_list_of_nodes_has_a_value_on_a_single_node_only(tmp_path):
    found = reads(tmp_path, "os.environ['SLURM_JOB_NODELIST']")

    assert list(values_at(found, ALONE)) == ["SLURM_JOB_NODELIST"]
    assert values_at(found, PLACE) == {}


def test_an_unknown_variable_has_no_value(tmp_path):
    (read,) = found = reads(tmp_path, "os.environ['SLURM_TOPOLOGY_ADDR']")

    assert values_at(found, ALONE) == {}
    assert str(read) == "train.py:2 reads SLURM_TOPOLOGY_ADDR"


@pytest.mark.parametrize(
    "read", ["os.environ['RANK']", "os.environ.get('SLURM_PROCID', os.environ['RANK'])"], ids=["only", "too"]
)
def test_a_script_that_reads_torchruns_variables_needs_no_others(tmp_path, read):
    assert reads(tmp_path, read) == ()


def test_a_variable_that_the_script_sets_does_not_count_as_read(tmp_path):
    assert reads(tmp_path, "0))\nos.environ['SLURM_PROCID'] = str((1") == ()


def beside(folder, launcher, environment, read="0"):
    place = replace(PLACE, launcher=launcher)
    return values_beside(reads(folder, read), place, dict.fromkeys(environment, "0"))


def test_a_task_gets_its_place_in_the_variables_of_another_launcher_that_the_script_reads(tmp_path):
    values = beside(tmp_path, "openmpi", [], READS_RANK_OF_SLURM)

    assert {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}.items() <= values.items()


def test_the_variables_of_an_outer_launcher_are_replaced_by_the_place_of_the_task(tmp_path):
    values = beside(tmp_path, "torchrun", ["SLURM_NTASKS", "SLURM_CONF"])

    assert (values["SLURM_PROCID"], values["SLURM_NTASKS"]) == ("3", "4")
    assert not [name for name in values if not name.startswith("SLURM")]


def test_variables_of_the_tasks_own_launcher_are_kept_and_missing_ones_added(tmp_path):
    every = [name for name in beside(tmp_path, "torchrun", ["SLURM_NTASKS"]) if name.startswith("SLURM")]
    found = set(every) - {"SLURM_NTASKS_PER_NODE"}

    assert beside(tmp_path, "slurm", found, READS_RANK_OF_SLURM) == {"SLURM_NTASKS_PER_NODE": "2"}


def test_variables_of_a_launcher_that_is_neither_present_nor_read_are_not_set(tmp_path):
    assert beside(tmp_path, "torchrun", ["PATH", "SLURM_CONF"]) == {}
