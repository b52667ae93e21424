"""Scripts that read variables of Slurm or MPI get them from `samestep run`, or are refused."""

import ast
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from samestep.base.place import Place
from samestep.launch.source.classify import classify
from samestep.launch.source.launcher_variables import (
    VariableRead,
    is_of_launcher,
    values_at,
    values_beside,
    without_launcher,
)
from samestep.launchers.registry import (
    ENVIRONMENT,
    FIELDS,
    KUBERNETES,
    LAUNCHERS,
    RANK_VARIABLES,
    SAMESTEP,
    TORCHELASTIC,
)
from support.sources import written

JOINS = "import os, torch.distributed as d\nd.init_process_group('gloo', rank=int({read}))\n"
PLACE = Place(rank=3, size=4, local_rank=1, local_size=2, node=1, nodes=2)
READS_RANK_OF_SLURM = "os.environ['SLURM_PROCID']"
ALONE = Place(rank=1, size=2, local_rank=1, local_size=2)


TORCHRUNS = (SAMESTEP, TORCHELASTIC, ENVIRONMENT)
"""Rows of torchrun's variables."""


def variables_of(launcher):
    names = {name for field in FIELDS for name in getattr(launcher, field)}
    return names | {launcher.layout} - {""}


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_the_variables_of_a_launchers_row_are_hidden_and_recognized(launcher):
    """Only this finds lists of prefixes that lack those of a new row."""
    names = variables_of(launcher)
    assert [name for name in names if not name.startswith(RANK_VARIABLES)] == []
    if launcher is KUBERNETES:  # scripts read torchrun's variables, which its manifests set
        return
    own = names.difference(*map(variables_of, TORCHRUNS))
    assert [name for name in own if not is_of_launcher(name)] == []
    assert values_at([VariableRead(name, Path("train.py"), 1) for name in own], PLACE).keys() == own


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


IMPORTS = "import os\nimport torch\nimport torch.distributed as dist\n"
OPTIONAL = {
    "rank": """
        ddp = int(os.environ.get("RANK", -1)) != -1
        if ddp:
            dist.init_process_group("nccl")
        """,
    "world size": """
        world_size = int(os.getenv("WORLD_SIZE", "1"))
        distributed = world_size > 1
        if distributed and 1 + 1:
            dist.init_process_group()
        """,
    "in the environment": """
        if "LOCAL_RANK" not in os.environ:
            main()
        else:
            dist.init_process_group()
        """,
    "function": """
        def set_up():
            dist.init_process_group()
        if os.environ.get("RANK") is not None:
            set_up()
        """,
    "early return": """
        ddp = bool(os.environ.get("WORLD_SIZE"))
        def set_up():
            if not ddp:
                return
            dist.init_process_group()
        set_up()
        """,
    "attribute": """
        class Settings: pass
        settings = Settings()
        settings.distributed = int(os.environ.get("SLURM_NTASKS", default=1)) > 1
        if settings.distributed:
            dist.init_process_group()
        """,
    "expression": """
        ddp = "RANK" in os.environ
        model = torch.nn.parallel.DistributedDataParallel(model) if ddp else model
        """,
    "wrapped if joined": """
        if "RANK" in os.environ and os.environ.get("GO"):
            dist.init_process_group()
        if dist.is_initialized():
            model = torch.nn.parallel.DistributedDataParallel(model)
        """,
}
REQUIRED = {
    "always": 'rank = int(os.environ.get("RANK", 0))\ndist.init_process_group(rank=rank)',
    "by an option": "if args.distributed:\n    dist.init_process_group()",
    "by another variable": 'if os.environ.get("DISTRIBUTED") == "1":\n    dist.init_process_group()',
    "either way": """
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("gloo", rank=0, world_size=1)
        """,
    "assigned twice": """
        ddp = "RANK" in os.environ
        ddp = ddp or ask()
        if ddp:
            dist.init_process_group()
        """,
    "without it an error": """
        if "LOCAL_RANK" not in os.environ:
            raise RuntimeError("start it with torchrun")
        dist.init_process_group()
        """,
    "without it an end": """
        import sys
        if int(os.environ.get("WORLD_SIZE", 1)) < 2:
            print("start it with torchrun")
            sys.exit(1)
        dist.init_process_group()
        """,
    "an option of this name": """
        class Other:
            def __init__(self):
                self.distributed = "RANK" in os.environ
        parser.add_argument("--distributed", action="store_true", default=True)
        args = parser.parse_args()
        if args.distributed:
            dist.init_process_group()
        """,
    "set by itself": """
        os.environ.setdefault("RANK", "0")
        if "RANK" in os.environ:
            dist.init_process_group()
        """,
    "set from another": """
        os.environ["RANK"] = os.environ.get("TASK", "0")
        if int(os.environ.get("RANK", -1)) >= 0:
            dist.init_process_group()
        """,
    "imported": """
        try:
            from settings import ddp
        except ImportError:
            ddp = "RANK" in os.environ
        if ddp:
            dist.init_process_group()
        """,
    "a number or another": """
        size = int(os.environ.get("WORLD_SIZE", 0)) or int(os.environ.get("SLURM_NTASKS", 2))
        if size > 1:
            dist.init_process_group()
        """,
    "a group of a library": """
        import library
        library.start()
        if dist.is_initialized():
            model = torch.nn.parallel.DistributedDataParallel(model)
        """,
    "infinite": """
        size = int(os.environ.get("WORLD_SIZE", 1e999))
        if size > 1:
            dist.init_process_group()
        """,
    "a parameter": """
        ddp = "RANK" in os.environ
        def main(ddp):
            if ddp:
                dist.init_process_group()
        main(True)
        """,
}


def kind_of(folder, source, **how):
    script = folder / "train.py"
    script.write_text(IMPORTS + dedent(source))
    return classify(script, **how)


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_group_is_not_joined_without_a_launcher(tmp_path, name):
    found = kind_of(tmp_path, OPTIONAL[name])
    assert found.kind == "serial"
    assert found.optional.name.startswith("torch.")
    assert kind_of(tmp_path, OPTIONAL[name], is_set=is_of_launcher).kind == "native"


@pytest.mark.parametrize("name", REQUIRED)
def test_a_group_that_may_be_joined_in_any_case_is(tmp_path, name):
    assert kind_of(tmp_path, REQUIRED[name]).kind == "native"


BY_OPTION = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("-d", "--distributed", action="store_true")
parser.add_argument("--no-ddp", dest="ddp", action="store_false", default=False)
parser.add_argument("--backend")
args = {parsed}
if {test}:
    dist.init_process_group()
"""
TESTS = ("args.local_rank != -1", "args.distributed", "args.ddp", "args.backend is not None")


@pytest.mark.parametrize("test", TESTS)
def test_a_group_that_an_option_asks_for_is_not_joined_without_it(tmp_path, test):
    """Without it the ranks of a script with ``--local_rank`` train apart, and samestep ends them."""
    source = BY_OPTION.format(test=test, parsed="parser.parse_args()")
    assert kind_of(tmp_path, source, arguments=("--lr", "0.1")).kind == "serial"


@pytest.mark.parametrize(
    "words", ["--local_rank=0", "--local_rank 0", "--local 0", "--distributed", "-d", "--dist"], ids=str
)
def test_a_group_that_an_option_asks_for_is_joined_with_it(tmp_path, words):
    source = BY_OPTION.format(test="args.local_rank >= 0 or args.distributed", parsed="parser.parse_args()")
    assert kind_of(tmp_path, source, arguments=words.split()).kind == "native"


@pytest.mark.parametrize(
    "parsed",
    [
        "parser.parse_args(['--distributed'])",
        "parser.parse_args(sys.argv.append('-d'))",
        "parser.parse_args(); parser.set_defaults(distributed=True)",
        "parser.parse_args(); vars(args).update(distributed=True)",
        "parser.parse_args(); args.__dict__.update(read())",
        "parser.parse_args(); args.distributed = read()",
        "parser.parse_args(); setattr(args, 'distributed', True)",
        "parser.parse_args(); sys.argv = ['-d']",
        "parser.parse_args(); setattr(args, name(), True)",
        "parser.parse_args(); vars(args)[name()] = True",
    ],
)
def test_arguments_from_elsewhere_are_unknown(tmp_path, parsed):
    source = BY_OPTION.format(test="args.distributed", parsed=parsed)
    assert kind_of(tmp_path, source).kind == "native"


def test_the_code_of_a_script_is_not_changed(tmp_path):
    tree = ast.parse(IMPORTS + 'if "RANK" in os.environ:\n    dist.init_process_group()')
    before = ast.dump(tree)
    ((_, pruned),) = without_launcher([(tmp_path, tree)], lambda _: False)
    assert ast.dump(tree) == before != ast.dump(pruned)
