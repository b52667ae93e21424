"""Scripts whose `DistributedDataParallel` outlives its process group end."""

from textwrap import dedent

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
