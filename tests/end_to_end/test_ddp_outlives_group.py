"""Scripts whose `DistributedDataParallel` outlives its process group end."""

from textwrap import dedent

from support import commands
from support.forked_commands import samestep


def test_a_script_ends_if_a_ddp_model_outlives_its_process_group(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        dedent("""
            import sys
            import torch
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel

            sys.setswitchinterval(1000)  # the group's thread gets the interpreter lock from a wait only
            for _ in range(5):
                dist.init_process_group("gloo")
                model = DistributedDataParallel(torch.nn.Linear(4, 2))
                values = torch.ones(4)
                dist.all_reduce(values)
                dist.destroy_process_group()
                del model
            sys.stdout.write("ended\\n")  # a print of two ranks may interleave with its line end
        """)
    )

    ended = samestep("run", "-n", 2, script)

    assert (ended.code, ended.out) == (0, "ended\n" * 2), ended.err


def test_the_threads_of_a_group_end_with_it(tmp_path):
    """One that runs at the interpreter's end may abort the process, in some of 100 runs on a busy machine."""
    script = tmp_path / "train.py"
    script.write_text(
        dedent("""
            import sys
            from pathlib import Path

            import torch
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel

            dist.init_process_group("gloo")
            model = DistributedDataParallel(torch.nn.Linear(4, 2))
            model(torch.ones(1, 4)).sum().backward()
            del model
            names = lambda: {file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")}
            before = "pt_gloo_runloop" in names()
            dist.destroy_process_group()
            sys.stdout.write(f"{before} {[name for name in names() if 'gloo' in name]}\\n")
        """)
    )

    ended = commands.samestep("run", "-n", 2, script)  # the tests' fork server has loaded torch's compiler

    assert (ended.code, ended.out) == (0, "True []\n" * 2), ended.err
