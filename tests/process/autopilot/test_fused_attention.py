"""Attention whose kernel draws its dropout itself, as on a GPU, stays unsplit with a reason."""

import torch
from torch import nn
from torch.nn import functional as F

from samestep.autopilot.once_script import script_with_helpers
from samestep.autopilot.script.options import Options
from samestep.autopilot.split.random_draws import FUSED_ATTENTION


def attention(q, k, v, p):
    """Compute attention with dropout in one operation, as the kernels of CUDA do."""
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights.bernoulli(1 - p).mul(weights / (1 - p)) @ v


class Attention(nn.Module):
    """Computes in one kernel, except in double precision, for which CUDA has none."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        q = self.layer(x).detach()
        if q.dtype == torch.float64:
            return self.layer(F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
        return self.layer(torch.ops.aten._scaled_dot_product_stand_in_attention(q, q, q, 0.5))


def reasons(_, size):
    """Call the model; return its output, and the reasons for unsplit calls."""
    library = torch.library.Library("aten", "FRAGMENT")
    try:
        library.define(
            "_scaled_dot_product_stand_in_attention(Tensor q, Tensor k, Tensor v, float p) -> Tensor",
            tags=(torch.Tag.nondeterministic_seeded,),
        )
        library.impl("_scaled_dot_product_stand_in_attention", attention, "CPU")
        torch.manual_seed(0)
        model = Attention()
        with script_with_helpers(size, forks=True) as account:
            output = model(torch.rand(8, 6, 4))
        return output.sum().item(), [why for counts in account.counts.values() for why in counts]
    finally:
        library._destroy()


def test_attention_with_dropout_in_one_kernel_is_unsplit_with_the_way_out(processes):
    ((serial, _),) = processes.run(reasons, 1, 1)
    ((found, why),) = processes.run(reasons, 1, 2)
    assert why[0].startswith(FUSED_ATTENTION)
    assert found == serial


class Biased(nn.Module):
    """Adds trained positions to its scores, for whose gradients there is no fused kernel, and drops paths."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.positions = nn.Parameter(torch.rand(6, 6))

    def forward(self, x):
        q = self.layer(x).unsqueeze(1)
        found = F.scaled_dot_product_attention(q, q, q, attn_mask=self.positions.exp()).squeeze(1)
        return x + found * torch.rand(len(x), 1, 1)


def gradients(_, size):
    """Train the model once; return the gradient of its positions, and why a call was unsplit."""
    torch.manual_seed(0)
    model = Biased().double()
    with script_with_helpers(size, Options(short_calls="split"), forks=True) as account:
        model(torch.rand(8, 6, 4, dtype=torch.float64)).square().sum().backward()
    return model.positions.grad, dict(account.counts)


def test_attention_that_draws_no_numbers_may_have_another_kernel_without_gradients(processes):
    ((serial, _),) = processes.run(gradients, 1, 1)
    ((found, unsplit),) = processes.run(gradients, 1, 2)
    assert not unsplit
    torch.testing.assert_close(found, serial)
