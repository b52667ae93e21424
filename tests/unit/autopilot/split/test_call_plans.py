"""Reasons name the outputs of a call as its script does."""

import torch
from torch import nn

from samestep.autopilot.split.call_plans import outcome, place_of
from samestep.hooks.tensor_tree import leaves


def test_a_tensor_of_an_outcome_has_the_name_that_the_script_uses():
    experts = nn.Sequential(nn.Linear(2, 2))
    experts.aux_loss, experts[0].counts = torch.ones(()), [torch.ones(2)]
    sides = [("", "aux_loss"), ("0", "counts")]

    names = [place_of(path) for path, _ in leaves(outcome(experts, {"logits": torch.ones(2)}, sides))]

    assert [name.rpartition(" ")[2] for name in names] == ["output['logits']", "aux_loss", "0.counts[0]"]
