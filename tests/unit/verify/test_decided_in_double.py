"""Differences in single precision are repeated in double precision before a script is accused."""

from types import SimpleNamespace

import pytest

from samestep.verify import precision
from samestep.verify.compare import Deviation
from samestep.verify.precision import decided_in_double, may_be_rounding
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


@pytest.mark.parametrize(("double", "causes"), [(comparison(worst=1e-3), []), (comparison(), [PRINTED])])
def test_a_difference_that_stays_in_double_precision_is_a_fault(monkeypatch, double, causes):
    monkeypatch.setattr(precision, "causes", lambda _: causes)
    assert decided_in_double([PRINTED], double) == [PRINTED]
