"""Leaves that a call creates are compared across ranks once, weights of the script whenever they are new."""

import torch
from torch import nn

from samestep.autopilot.split.created_tensors import CreatedTensors
from samestep.autopilot.split.gradients import Gradients
from samestep.ranks.world.protocol import RelayedWorld
from samestep.ranks.world.thread_world import run_ranks


class CountingWorld(RelayedWorld):
    """A world that counts the collectives of Python objects."""

    objects = 0

    def all_gather_objects(self, value):
        self.objects += 1
        return super().all_gather_objects(value)


def created_by(world):
    """Return the leaves that a call creates from its slice, one for each of its samples, and their record."""
    with CreatedTensors() as created:
        own = [
            torch.full((3,), float(10 * world.place.rank + place)) for place in range(1 + world.place.rank)
        ]
        return [one.requires_grad_() for one in own], created


def test_leaves_of_a_slice_are_compared_in_the_first_call_only():
    def on_rank(inner):
        world = CountingWorld(inner)
        gradients, vary, counts = Gradients(world), None, []
        for _ in range(4):
            leaves, created = created_by(world)
            vary = gradients.follow_leaves(leaves, vary=vary, created=created)
            counts.append(world.objects)
        return vary, counts, [gradients.follows(one) for one in leaves]

    for rank, (vary, counts, followed) in enumerate(run_ranks(on_rank, 2)):
        assert vary
        assert counts == [1] * 4
        assert followed == [False] * (1 + rank)


def test_a_weight_that_one_slice_uses_first_is_found_and_followed_by_all_ranks():
    weight = {rank: torch.ones(3).requires_grad_() for rank in range(2)}

    def on_rank(inner):
        world = CountingWorld(inner)
        rank, gradients = world.place.rank, Gradients(world)
        found = []
        vary = gradients.follow_leaves(created_by(world)[0])
        for used in (set(), {1}, {0, 1}):
            leaves, created = created_by(world)
            leaves += [weight[rank]] if rank in used else []
            vary = gradients.follow_leaves(leaves, vary=vary, created=created)
            found.append(gradients.follows(weight[rank]))
        gradients.detach()
        return found

    assert run_ranks(on_rank, 2) == [[False, False, True]] * 2


def test_tensors_of_the_script_are_not_created_and_those_of_the_call_are():
    before = torch.ones(3)
    with CreatedTensors() as created:
        before.requires_grad_()
        parameter = nn.Parameter(torch.zeros(2))
        new = [torch.zeros(2).requires_grad_(), (before * 2).detach().requires_grad_(), *before.unbind()]
    assert before not in created
    assert parameter not in created
    assert all(one in created for one in new)
