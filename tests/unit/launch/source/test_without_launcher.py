"""A script that joins a group only under a launcher is serial where there is none."""

import ast
from textwrap import dedent

import pytest

from samestep.launch.source.classify import classify
from samestep.launch.source.launcher_variables import is_of_launcher
from samestep.launch.source.without_launcher import without_launcher

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
        parser.add_argument("--distributed", action="store_true")
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


def test_the_code_of_a_script_is_not_changed(tmp_path):
    tree = ast.parse(IMPORTS + 'if "RANK" in os.environ:\n    dist.init_process_group()')
    before = ast.dump(tree)
    ((_, pruned),) = without_launcher([(tmp_path, tree)], lambda _: False)
    assert ast.dump(tree) == before != ast.dump(pruned)
