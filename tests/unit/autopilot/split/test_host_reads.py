"""The counter finds each way to read a tensor in samestep's code, and no read of the host or the script."""

import pytest
import torch
from torch import nn

from samestep.autopilot.split.loss_reduction import Weight
from samestep.base.folders import PACKAGE
from support.host_reads import HostReads

READING = {
    "float": "float(x.sum())",
    "item": "x.sum().item()",
    "branch": "1 if (x > 0).any() else 2",
    "tolist": "x.tolist()",
    "numpy": "x.numpy()",
    "cpu": "x.cpu()",
    "to": "x.to('cpu')",
    "equal": "torch.equal(x, x)",
    "allclose": "torch.allclose(x, x)",
    "nonzero": "x.nonzero()",
    "mask": "x[x > 0]",
    "contains": "1 in x",
    "new tensor of a list": "torch.tensor([1.0], device=device)",
    "number in where": "torch.where(x > 0, x, 0.0)",
    "copy to the host": "torch.empty(3, device='cpu').copy_(x)",
    "copy from the host": "x.copy_(torch.zeros(3, device='cpu'))",
}
COMPUTING = {
    "arithmetic": "torch.where(x > 0, x, 0 * x).sum()",
    "indices": "x[1:], x[0], x[torch.arange(2, device=device)]",
    "number of elements": "float(x.numel()) + len(x)",
    "filled": "torch.full((), 2.0, device=device)",
    "tensor of the host": "torch.tensor([1.0], device='cpu').mul(2).tolist()",
    "copy without waiting": "torch.empty(3, device='cpu').copy_(x, non_blocking=True)",
    "part of a tensor of the host": "bool(torch.zeros(3, device='cpu')[1])",
}


def planted(expression, file="autopilot/split/planted.py"):
    """Return a function with the code `expression`, as if a file of samestep defined it."""
    names = {"torch": torch}
    code = compile(f"def read(x, device):\n    return {expression}\n", f"{PACKAGE}/{file}", "exec")
    exec(code, names)
    return names["read"]


def counted(function):
    with HostReads() as reads:
        function(torch.tensor([1.0, 2.0, 3.0]), torch.device("cpu"))
    return reads.found


@pytest.mark.parametrize("name", READING)
def test_a_read_is_found_with_its_line(name):
    assert counted(planted(READING[name])) == ["autopilot/split/planted.py:2"]


@pytest.mark.parametrize("name", COMPUTING)
def test_computations_and_tensors_of_the_host_are_not_counted(name):
    assert counted(planted(COMPUTING[name])) == []


def test_reads_of_checks_and_of_user_code_are_not_counted():
    assert counted(lambda x, _: float(x.sum())) == []
    read = planted(READING["float"])
    check = planted("device(x)", "autopilot/equivalence/planted.py")
    assert counted(lambda x, device: check(x, lambda one: read(one, device))) == []
    assert counted(planted(READING["float"], "hooks/random_draws.py")) == []


def test_reads_within_backward_are_counted():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            planted(READING["item"])(grad, None)
            return grad

    def trained(x, _):
        Reads.apply(x.requires_grad_()).sum().backward()
        torch.autograd.grad(Reads.apply(x).sum(), x)

    assert counted(trained) == ["autopilot/split/planted.py:2"] * 2


def test_numbers_of_python_in_a_graph_are_not_counted():
    def weighed(x, _):
        Weight.at((x.requires_grad_().sum() / 2).grad_fn._saved_other)

    assert counted(weighed) == []


def test_reads_of_a_layer_that_samestep_calls_belong_to_the_script():
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.ones(3, 2, 1), torch.tensor([2, 3]), enforce_sorted=False
    )
    call = planted("device(x)")
    assert counted(lambda *_: call(packed, nn.utils.rnn.pad_packed_sequence)) == []
