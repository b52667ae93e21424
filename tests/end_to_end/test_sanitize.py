"""``samestep run --sanitize``: what sets the ranks of a script apart is named, and ends the run."""

from textwrap import dedent

from support.forked_commands import samestep


def told(tmp_path, text):
    """Run a script on two workers; return the exit code, and the errors and warnings without the file."""
    file = tmp_path / "train.py"
    file.write_text(dedent(text))
    ended = samestep("run", "-n", 2, "--sanitize", file)
    said = [line for line in ended.err.splitlines() if "error: " in line or "warning: " in line]
    return ended.code, [line.removeprefix("samestep: ").replace(f"{file}:", "line ") for line in said]


def test_a_script_of_ranks(tmp_path):
    code, said = told(
        tmp_path,
        """\
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(0)
        for step in range(3):
            samples = torch.full((2, 4), 1.0 + dist.get_rank())
            if step == 1 and dist.get_rank() == 1:
                samples[0, 0] = float("nan")
            loss = model(samples).mean()
            loss.backward()
            optimizer.step()
        """,
    )

    assert code == 1
    warning, error = said
    assert warning.startswith(
        "warning: ranks 0-1 draw the same random numbers for different samples in backward 1 "
        "(DistributedDataParallel at line 12)"
    )
    assert error.startswith("error: the loss is NaN or infinite on rank 1 of 2 alone, in backward 2.")
    assert error.endswith("(line 13)")


def test_copies_of_a_serial_script(tmp_path):
    code, said = told(
        tmp_path,
        """\
        import os, torch

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1:
                model.bias.data[0] += os.getpid()
        """,
    )

    assert code == 1
    assert len(said) == 1
    assert said[0].startswith("error: the replicas have drifted apart: rank 1 differs from rank 0")
    assert said[0].endswith("Seen after optimizer step 3. (line 9)")
