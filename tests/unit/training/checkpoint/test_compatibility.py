"""A checkpoint of another model is refused with its first differences, before anything changes."""

import doctest

import pytest
import torch
from torch import nn

from samestep.base.errors import CheckpointError
from samestep.training.checkpoint import compatibility, retention, third_party
from samestep.training.checkpoint.compatibility import optimizer_mismatch
from support.snapshots import network, snapshot, stepped


def test_equal_names_and_shapes_are_compatible():
    snapshot(average=network(1).state_dict()).check_fits(network(2, dtype=torch.float32))


@pytest.mark.parametrize("part", ["model", "average"])
def test_other_names_and_shapes_are_reported(part):
    weights = {**network().state_dict(), "0.bias": torch.zeros(7), "more": torch.zeros(1)}
    del weights["1.bias"]

    with pytest.raises(CheckpointError) as caught:
        snapshot(**{part: weights}).check_fits(network())

    assert str(caught.value) == (
        "the checkpoint belongs to another model: missing: 1.bias; unexpected: more; "
        "of another shape: 0.bias (7,), in the model (2,)."
    )


def test_parameter_groups_of_optimizers_are_compared():
    model = network()
    one = stepped(model)
    two = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=1)

    assert optimizer_mismatch(one.state_dict(), one) is None
    assert (
        optimizer_mismatch(one.state_dict(), two) == "groups of [4] parameters, in the optimizer [1, 1, 1, 1]"
    )
    assert optimizer_mismatch(nn.Linear(1, 1).state_dict(), one) == (
        "it is not the state of an optimizer: it has weight, bias"
    )


NOT_OF_A_GRADIENT = {"Optimizer", "LBFGS", "SparseAdam"}
"""The base of all, one that calls the model itself, and one for sparse gradients."""
KINDS = [
    kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and name not in NOT_OF_A_GRADIENT
]


def made(kind):
    """Return an optimizer of two parameters, each with a gradient."""
    parameters = [torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return kind(parameters, lr=0.1)


@pytest.mark.parametrize("given", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_state_of_another_optimizer_is_accepted_only_if_a_step_with_it_works(kind, given):
    saved, optimizer = made(kind), made(given)
    saved.step()
    mismatch = optimizer_mismatch(saved.state_dict(), optimizer)

    if kind is given:
        assert mismatch is None
    elif {kind, given} != {torch.optim.Adam, torch.optim.AdamW}:  # the state of one is that of the other
        assert mismatch is not None
    if mismatch is None:
        optimizer.load_state_dict(saved.state_dict())
        optimizer.step()


def test_hyperparameters_that_differ_between_optimizers_are_reported():
    adam, adamax = (made(kind).state_dict() for kind in (torch.optim.Adam, torch.optim.Adamax))

    assert (
        optimizer_mismatch(adam, made(torch.optim.SGD))
        == "it has no dampening, momentum, nesterov, which SGD needs"
    )
    assert optimizer_mismatch(adam, made(torch.optim.Adamax)).startswith("it has amsgrad, ")
    assert optimizer_mismatch(adamax, made(torch.optim.Adam)).startswith("it has no amsgrad")


def test_hyperparameters_that_depend_on_the_torch_version_or_the_script_are_ignored():
    optimizer = made(torch.optim.Adam)
    saved = optimizer.state_dict()
    (group,) = saved["param_groups"]
    for name in ("decoupled_weight_decay", "foreach", "fused"):
        group.pop(name, None)  # of an earlier torch

    assert optimizer_mismatch(saved, optimizer) is None
    group |= {"initial_lr": 0.1, "mine": 3, "decoupled_weight_decay": False}
    del optimizer.param_groups[0]["decoupled_weight_decay"]
    assert optimizer_mismatch(saved, optimizer) is None


@pytest.mark.parametrize("has_stepped", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad], ids=lambda kind: kind.__name__)
def test_shapes_of_optimizer_state_are_compared(kind, has_stepped):
    saved, optimizer = made(kind), made(kind)
    saved.step()
    if has_stepped:
        optimizer.step()
    state = saved.state_dict()
    state["param_groups"][0]["params"].reverse()  # as of a model that lists its parameters in another order

    message = optimizer_mismatch(state, optimizer)

    assert message.startswith("of another shape: ")
    assert "of parameter 0 (3, 2), in the optimizer (2, 3)" in message


class UserDefined(torch.optim.SGD):
    """A user-defined optimizer, whose state has other shapes than its parameters."""


def test_only_existing_state_of_a_user_defined_optimizer_is_compared():
    saved, fresh, other = (made(UserDefined) for _ in range(3))
    first = saved.param_groups[0]["params"][0]
    saved.state[first] = {"exp_avg": torch.ones(2), "step": 1}
    other.state[other.param_groups[0]["params"][0]] = {"exp_avg": torch.ones(4)}

    assert optimizer_mismatch(saved.state_dict(), fresh) is None
    assert optimizer_mismatch(saved.state_dict(), other) == (
        "of another shape: exp_avg of parameter 0 (2,), in the optimizer (4,)"
    )
    assert optimizer_mismatch({"step": 1}, nn.Linear(1, 1)) is None


@pytest.mark.parametrize(
    "module", [compatibility, third_party, retention], ids=lambda module: module.__name__
)
def test_the_examples_in_docstrings_are_correct(module):
    failed, tried = doctest.testmod(module)

    assert (failed, tried > 0) == (0, True)
