"""Trains a model of one parameter for one step: gradients summed over the ranks, and averaged."""

from typing import Any

import torch
from torch import Tensor, nn

from samestep.parallel.gradients.replicate import replicate
from samestep.ranks.world.process_group import ProcessGroupWorld
from samestep.ranks.world.protocol import World
from samestep_lab.experiments.experiment import Outcome, Setup, Table

START, RATE = 2.0, 0.1


class OneParameter(nn.Module):
    """The difference between a parameter, at first 2, and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.tensor([START]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the difference for each input."""
        return self.parameter - inputs

    def step(self, gradient: Tensor | None = None) -> float:
        """Take one step of gradient descent, and return the new parameter."""
        gradient = self.parameter.grad if gradient is None else gradient
        assert gradient is not None
        return round((self.parameter.detach() - RATE * gradient).item(), 6)


def on_rank(world: World) -> dict[str, Any]:
    """Return the gradient of this rank, and the new parameter for each way to combine the gradients."""
    inputs = torch.tensor([float(world.place.rank)])
    model = OneParameter()
    model(inputs).square().sum().backward()
    assert model.parameter.grad is not None
    results: dict[str, Any] = {"gradient": model.parameter.grad.item()}
    for op in ("sum", "mean"):
        combined = model.parameter.grad.clone()
        world.all_reduce(combined, op=op)
        results[op] = model.step(combined)
    for sync in ("bucketed", *(["ddp"] if isinstance(world, ProcessGroupWorld) else [])):
        replica = OneParameter()
        with replicate(replica, world, sync=sync, check_every=0):
            replica(inputs).square().sum().backward()
        results[f"samestep, {sync}"] = replica.step()
    return results


def serial(workers: int, reduction: str) -> float:
    """Return the new parameter of one process that has all inputs; `reduction` combines the losses."""
    model = OneParameter()
    losses = model(torch.arange(float(workers))).square()
    getattr(losses, reduction)().backward()
    return model.step()


def run(setup: Setup) -> Outcome:
    """Run the experiment."""
    ranks = setup.ranks(on_rank, setup.workers)
    gradients = [rank.pop("gradient") for rank in ranks]
    ways = {f"gradients by {name}" if name in ("sum", "mean") else name: ranks[0][name] for name in ranks[0]}
    ways |= {f"one process, {name} of losses": serial(setup.workers, name) for name in ("sum", "mean")}
    equal = all(rank == ranks[0] for rank in ranks)
    rows = [(name, f"{value:g}") for name, value in ways.items()]
    return Outcome(
        tables=[
            Table(
                head=("rank", "input", "gradient"),
                rows=[(str(rank), str(rank), f"{gradient:g}") for rank, gradient in enumerate(gradients)],
            ),
            Table(head=("step", "new parameter"), rows=rows),
        ],
        measured=(
            f"The sum of the gradients ({sum(gradients):g}) gives {ways['gradients by sum']:g}, their mean "
            f"({sum(gradients) / setup.workers:g}) gives {ways['gradients by mean']:g}; "
            f"{'all ranks agree' if equal else 'the ranks differ'}."
        ),
        values={"gradients": gradients, "parameters": ways, "ranks_agree": equal},
    )
