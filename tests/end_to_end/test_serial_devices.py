"""Serial scripts on machines with GPUs: each worker has its own, by every name."""

from textwrap import dedent

import pytest
import torch

from support.commands import samestep


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_every_name_of_a_device_selects_the_workers_own_device(tmp_path):
    prog = tmp_path / "prog.py"
    prog.write_text(
        dedent(
            """\
        import torch
        torch.manual_seed(0)
        device = torch.accelerator.current_accelerator()
        assert torch.cuda.device_count() == 1
        model = torch.nn.Linear(4, 1).cuda()
        bias = torch.zeros(1, requires_grad=True)  # of the CPU
        optimizer = torch.optim.SGD([*model.parameters(), bias], lr=0.05)
        for step in range(5):
            x = torch.randn(8, 4, device="cuda:0")
            loss = (model(x).to(device) ** 2).mean() + (bias - 1).square().sum().cuda()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{step} {loss.item():.5f}")
        """
        )
    )
    serial, shared = (samestep("run", "-n", n, prog) for n in (1, 2))
    assert (serial.code, shared.code) == (0, 0), shared.err
    assert shared.out == serial.out
