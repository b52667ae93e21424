"""``samestep run --sanitize`` names a difference between the ranks of a script, and ends the run."""

import re
from textwrap import dedent

from support.forked_commands import samestep


def reported(tmp_path, text):
    """Run a script on two workers; return the exit code, and the errors and warnings without the file."""
    file = tmp_path / "train.py"
    file.write_text(dedent(text))
    ended = samestep("run", "-n", 2, "--sanitize", file)
    lines = [line for line in ended.err.splitlines() if "error: " in line or "warning: " in line]
    return ended.code, [line.removeprefix("samestep: ").replace(f"{file}:", "line ") for line in lines]


def test_differences_between_ranks_of_a_distributed_script_are_reported(tmp_path):
    code, lines = reported(
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
    warning, error = lines
    expected = r"warning: ranks 0-1 .*random numbers.* backward 1 \(DistributedDataParallel at line 12\)"
    assert re.match(expected, warning)
    assert re.match(r"error: .* loss .*NaN.* rank 1 of 2 .* backward 2\.", error)
    assert error.endswith("(line 13)")


def test_ranks_with_unequal_steps_in_a_join_context_are_not_compared_there(tmp_path):
    code, lines = reported(
        tmp_path,
        """\
        import torch, torch.distributed as dist
        from torch.distributed.algorithms.join import Join
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(steps):
            for step in range(steps):
                optimizer.zero_grad()
                model(torch.full((2, 4), step + dist.get_rank() + 1.0)).mean().backward()
                optimizer.step()

        with Join([model]):
            train(2 + dist.get_rank())
        train(2)
        with torch.no_grad():
            model.module.bias += dist.get_rank()
        train(1)
        """,
    )

    assert code == 1
    assert len(lines) == 1  # the change after the context, which the next step shows
