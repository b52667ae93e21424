"""A run in double precision decides whether a difference is rounding."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from samestep.verify import precision
from samestep.verify.compare import Deviation
from samestep.verify.precision import decided_in_double, in_double_precision, may_be_rounding
from samestep.verify.verdict import Finding

PRINTED = Finding(cause="printed", message="", workers=2, max_relative_deviation=0.01, kind="fault")
GRADIENT = Finding(cause="gradient", message="", workers=2, step=1, max_relative_deviation=0.5, kind="fault")
ORDER = Finding(cause="order", message="", workers=2, kind="fault")


def comparison(epsilon=1.2e-7, worst=1e-14):
    deviations = [Deviation("loss", 0, 1e-15, 1e-12), Deviation("loss", 1, worst, 1e-12)]
    reference = SimpleNamespace(facts=SimpleNamespace(epsilon=epsilon))
    return SimpleNamespace(reference=reference, steps=2, deviations=deviations)


@pytest.mark.parametrize(
    ("found", "epsilon", "repeated"),
    [
        ([PRINTED], 1.2e-7, True),
        ([GRADIENT, PRINTED], 1.2e-7, True),
        ([PRINTED, ORDER], 1.2e-7, False),
        ([PRINTED], 2.2e-16, False),
        ([], 1.2e-7, False),
    ],
)
def test_prints_and_values_of_single_precision_are_repeated(found, epsilon, repeated):
    assert may_be_rounding(comparison(epsilon), found) == repeated


@pytest.mark.parametrize("fault", [PRINTED, GRADIENT])
def test_a_difference_that_double_precision_does_not_have_is_a_note(monkeypatch, fault):
    monkeypatch.setattr(precision, "causes", lambda _: [])
    (found,) = decided_in_double([fault], comparison())
    assert (found.cause, found.kind) == ("single-precision", "note")


@pytest.mark.parametrize("fault", [PRINTED, GRADIENT])
@pytest.mark.parametrize(("double", "causes"), [(comparison(worst=1e-3), []), (comparison(), [PRINTED])])
def test_a_difference_that_stays_in_double_precision_is_a_fault(monkeypatch, double, causes, fault):
    """Only this finds a comparison of the steps before that of the gradient alone."""
    monkeypatch.setattr(precision, "causes", lambda _: causes)
    assert decided_in_double([fault], double) == [fault]


MADE = {
    "default": lambda: torch.zeros(2),
    "named": lambda: torch.zeros(2, dtype=torch.float32),
    "drawn": lambda: torch.randn(2),
    "of a list": lambda: torch.tensor([1.0, 2.0], dtype=torch.float),
    "of NumPy": lambda: torch.from_numpy(np.ones(2, dtype=np.float32)),
    "converted": lambda: torch.arange(2).float(),
    "to a dtype": lambda: torch.arange(2).to(torch.float32),
    "like": lambda: torch.ones_like(torch.zeros(2)),
    "parameter": lambda: nn.Linear(2, 1).weight,
    "of a layer": lambda: nn.Linear(2, 1)(torch.zeros(1, 2)),
}


@pytest.mark.parametrize("how", sorted(MADE))
def test_a_tensor_of_single_precision_is_double(how):
    with in_double_precision():
        made = MADE[how]()
    assert made.dtype == torch.float64


DRAWN = {
    "layer": lambda: nn.Linear(40, 2).weight,
    "rand": lambda: torch.rand(20),
    "randn": lambda: torch.randn(20, dtype=torch.float32),
    "randn of a generator": lambda: torch.randn(20, generator=torch.Generator().manual_seed(5)),
    "like": lambda: torch.randn_like(torch.zeros(20)),
    "normal": lambda: torch.normal(1.0, 2.0, (20,)),
    "fill": lambda: torch.empty(20).exponential_(),
    "dropout": lambda: F.dropout(torch.ones(40), 0.5),
}


@pytest.mark.parametrize("how", sorted(DRAWN))
def test_random_numbers_are_those_of_single_precision(how):
    torch.manual_seed(3)
    usual = DRAWN[how]()
    torch.manual_seed(3)
    with in_double_precision():
        drawn = DRAWN[how]()
    assert drawn.dtype == torch.float64
    torch.testing.assert_close(drawn.float(), usual, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_other_types_are_kept(dtype):
    with in_double_precision():
        assert torch.zeros(2, dtype=dtype).dtype == dtype


def test_single_precision_is_converted_in_operations_with_double_precision():
    single = torch.full((3, 2), 0.5)  # made before, as by a library
    with in_double_precision():
        model = nn.Linear(2, 4)
        loss = F.cross_entropy(model(single), torch.zeros(3, dtype=torch.long))
        loss.backward()
    assert (loss.dtype, model.weight.grad.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_computes_its_forward_again_in_double_precision(use_reentrant):
    rows = torch.ones(3, 2, requires_grad=True)  # of single precision
    with in_double_precision():
        layer = nn.Linear(2, 2)
        checkpoint(layer, rows, use_reentrant=use_reentrant).sum().backward(retain_graph=False)
    assert layer.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_complex_numbers_are_double_too():
    with in_double_precision():
        assert torch.zeros(2, dtype=torch.complex64).dtype == torch.complex128


def test_single_precision_is_the_default_again_after_the_block():
    with in_double_precision():
        pass
    assert (torch.zeros(2).dtype, torch.get_default_dtype()) == (torch.float32, torch.float32)
