"""The further calls of a check have other numbers of samples, or that of the actual call."""

from copy import deepcopy

import torch
from torch import nn

from samestep.autopilot.equivalence import disturbance
from samestep.autopilot.equivalence.check import EquivalenceCheck
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.ranks.world.thread_world import run_ranks


class RefusesSeven(nn.Linear):
    def forward(self, x):
        if len(x) == 7:
            raise ValueError(len(x))
        return super().forward(x)


def test_a_further_call_that_a_model_refuses_is_repeated_with_the_samples_of_the_actual_call(monkeypatch):
    """Only this finds further calls that are left out where a model takes no batch of their size."""
    model, disturbed_inputs, counts = RefusesSeven(4, 2), disturbance.disturbed_inputs, []

    def counted(arguments, dims, total, how, uses):
        if how.lopsided:
            counts.append(how.samples)
        return disturbed_inputs(arguments, dims, total, how, uses)

    def checked(world):
        arguments = CallArguments((torch.ones(8, 4),))
        return EquivalenceCheck(nn.Module.__call__, deepcopy(model), arguments, world).run()

    monkeypatch.setattr(disturbance, "disturbed_inputs", counted)
    verdicts = run_ranks(checked, 2)
    assert all(verdict.plan is not None for verdict in verdicts), verdicts
    assert sorted(map(str, counts)) == ["7", "7", "None", "None"]
