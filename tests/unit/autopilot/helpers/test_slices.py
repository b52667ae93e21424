"""The slices of calls are computed by the code that the script has for them."""

import torch
from torch import nn

from samestep.autopilot.helpers.slices import RankSlices
from samestep.autopilot.split.call_arguments import CallArguments
from samestep.autopilot.split.call_plans import ConcatenatedOutput, SplitPlan
from samestep.autopilot.split.gradients import SliceGradients
from samestep.ranks.world.protocol import SoloWorld


def test_compiled_code_runs_where_a_number_is_as_in_no_check():
    """Torch runs no compiled code while a mode watches operations: it then has another speed and rounding."""
    compiled = []

    def backend(graph, _):
        def run(*inputs):
            compiled.append(graph)
            return graph(*inputs)

        return run

    world, x = SoloWorld(), torch.ones(4, 3)
    model = torch.compile(nn.Tanh(), backend=backend)
    gatherings = {(0,): ConcatenatedOutput(0, (0, 1))}
    plan = SplitPlan({(0, 0): 0}, gatherings, sides=(), draws=None, watches_operations=True)
    slices = RankSlices(world, SliceGradients(world))
    result = slices.call(plan, nn.Module.__call__, model, [], CallArguments((x,)))
    assert torch.equal(result.outputs, x.tanh())
    assert len(compiled) == 1


class IgnoresSecond(nn.Module):
    def forward(self, x, _):
        return x * 2


def test_a_backward_does_not_enter_the_graph_of_an_input_that_no_output_depends_on():
    """Only this finds it among the sources: an earlier backward may have freed that graph."""
    world, x = SoloWorld(), torch.ones(4, 3, requires_grad=True)
    plan = SplitPlan({(0, 0): 0, (0, 1): 0}, {(0,): ConcatenatedOutput(0, (0, 1))}, sides=(), draws=None)
    slices = RankSlices(world, SliceGradients(world))
    result = slices.call(plan, nn.Module.__call__, IgnoresSecond(), [], CallArguments((x, x * x)))
    assert [source.requires_grad for source in result.sources] == [True, False]
