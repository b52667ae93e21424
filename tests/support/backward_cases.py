"""Ways to run backward, on the whole batch in one process or on a rank's share of it.

A case is ``case(model, inputs, weight)``; `weight` is the factor that makes uneven shares right, 1 in serial.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from samestep.parallel.gradients.replicate import replicate


def network(seed=0, dtype=torch.float64):
    """Three layers with a branch that only `branching` uses; equal for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def samples(count=7, features=3, dtype=torch.float64):
    """The global batch, (count, features)."""
    return torch.randn(count, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def mean_loss(outputs, weight):
    """The mean of squares, as this rank's part; an empty share contributes 0."""
    return outputs.pow(2).mean() * weight if len(outputs) else outputs.sum()


def plain(model, inputs, weight):
    mean_loss(model(inputs), weight).backward()


def repeated_backward(model, inputs, weight):
    for shift in range(3):
        mean_loss(model(inputs + shift), weight).backward()


def retained_graph(model, inputs, weight):
    loss = mean_loss(model(inputs), weight)
    loss.backward(retain_graph=True)
    loss.backward()


def two_losses(model, inputs, weight):
    """The first loss reaches the first layer only."""
    first = mean_loss(model[0](inputs), weight)
    second = mean_loss(model(inputs), weight)
    first.backward()
    second.backward()


def two_tensors(model, inputs, weight):
    torch.autograd.backward([mean_loss(model(inputs), weight), mean_loss(model[0](inputs), weight)])


def chosen_inputs(model, inputs, weight):
    mean_loss(model(inputs), weight).backward(inputs=list(model[2].parameters()))


def create_graph(model, inputs, weight):
    mean_loss(model(inputs), weight).backward(create_graph=True)


def gradient_penalty(model, inputs, weight):
    inputs = inputs.clone().requires_grad_()
    outputs = model(inputs)
    (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).pow(2).unsqueeze(1)
    (mean_loss(outputs, weight) + mean_loss(penalty, weight)).backward()


def nonreentrant_checkpoint(model, inputs, weight):
    hidden = checkpoint(model[:3], inputs, use_reentrant=False)
    mean_loss(checkpoint(model[3:], hidden, use_reentrant=False), weight).backward()


def reentrant_checkpoint(model, inputs, weight):
    hidden = checkpoint(model[:3], inputs.clone().requires_grad_(), use_reentrant=True)
    mean_loss(checkpoint(model[3:], hidden, use_reentrant=True), weight).backward()


def shared_reentrant_checkpoint(model, inputs, weight):
    """One block in three nested graphs: its gradients change three times in one backward."""
    hidden = inputs.clone().requires_grad_()
    for _ in range(3):
        hidden = checkpoint(model[:1], hidden, use_reentrant=True)[:, :3]
    hidden = model[0](hidden)
    mean_loss(model[1:](hidden), weight).backward()


def unused_layer(model, inputs, weight):
    mean_loss(model[:3](inputs), weight).backward()


def two_models(models, inputs, weight, *, reverse=False):
    """One loss of two models of equal shapes; backward reaches first the one that is called last."""
    order = [1, 0] if reverse else [0, 1]
    outputs = {row: models[row](inputs) for row in order}
    (mean_loss(outputs[0], weight) + 3 * mean_loss(outputs[1], weight)).backward()


def two_models_rank(world, sync):
    """Gradients of two models that the ranks reach in different orders; the last rank has no samples."""
    models = [network(0), network(1)]
    handles = [replicate(model, world, sync=sync, bucket_bytes=80) for model in models]
    inputs, weight = share_of(world, samples(), [4, 3, 0])
    for _ in range(3):
        for model in models:
            model.zero_grad()
        if len(inputs):
            two_models(models, inputs, weight, reverse=len(inputs) == 3)
        else:
            for handle in handles:
                handle.contribute_nothing()
    for handle in handles:
        handle.detach()
    return [gradients(model) for model in models]


CASES = [
    plain,
    repeated_backward,
    retained_graph,
    two_losses,
    two_tensors,
    chosen_inputs,
    create_graph,
    gradient_penalty,
    nonreentrant_checkpoint,
    reentrant_checkpoint,
    shared_reentrant_checkpoint,
    unused_layer,
]
SHARES = [[4, 3], [7, 0], [3, 3, 1], [0, 7, 0]]
"""Uneven and empty shares of 7 samples."""


def share_of(world, inputs, shares):
    """This rank's slice of `inputs` and its weight."""
    start = sum(shares[: world.place.rank])
    count = shares[world.place.rank]
    return inputs[start : start + count], count * world.place.size / len(inputs)


def gradients(model):
    """The gradients by name, detached copies; None where there is none."""
    return {
        name: None if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
    }


def assert_equal_gradients(found, expected, *, tolerance=1e-12):
    for name, wanted in expected.items():
        if wanted is None:
            assert found[name] is None, f"{name} has a gradient, and none in serial"
        else:
            assert found[name] is not None, f"{name} has no gradient"
            torch.testing.assert_close(
                found[name], wanted, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
            )
