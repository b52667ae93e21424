"""The ways in which inputs may be split."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from samestep.autopilot.split.call_arguments import LIST, CallArguments, candidates, unequal_values
from samestep.autopilot.split.call_plans import batch_split
from samestep.base.place import Place


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: torch.Tensor


def ways(*args):
    return list(candidates(CallArguments(args), 2))


def test_a_list_of_samples_is_split_before_a_dimension_of_equal_size():
    graphs = [Graph(torch.ones(number, 1), torch.ones(number + 10, 3)) for number in (5, 6, 7, 8, 7)]

    features = {(0, 0, number, "edges"): 1 for number in range(5)}  # of equal size in all graphs
    assert ways(graphs) == [{(0, 0): LIST}, features]
    assert ways(tuple(graphs)) == [{(0, 0): LIST}, features]
    assert ways([[graph.nodes, graph.edges] for graph in graphs]) == [
        {(0, 0): LIST},
        {(0, 0, number, 1): 1 for number in range(5)},
    ]


def test_labels_and_other_lists_are_split_with_a_list_of_samples():
    images = [torch.ones(3, size, size) for size in (8, 9, 10, 11)]
    targets = tuple({"boxes": torch.ones(size, 4)} for size in (1, 2, 2, 1))

    assert {(0, 0): LIST, (0, 1): 0, (0, 2): LIST} in ways(images, torch.ones(4), targets)
    assert {(0, 0): LIST, (0, 1): LIST} in ways(images, targets, torch.ones(5))


def test_a_list_is_no_list_of_samples_if_its_parts_are_few_unlike_or_require_gradients():
    images = [torch.ones(3, size, size) for size in (8, 9, 10, 11)]
    weights = [image.requires_grad_() for image in map(torch.clone, images)]
    state = (torch.ones(2, 6, 4), torch.ones(2, 6, 4))  # of an LSTM
    for given in (images[:3], [*images, torch.ones(3)], weights, state):
        assert not any(LIST in way.values() for way in ways(given))


def test_a_list_of_inputs_is_split_with_the_samples():
    crops = [torch.ones(6, 3, size, size) for size in (8, 8, 4, 4, 4)]
    assert ways(crops)[0] == {(0, 0, number): 0 for number in range(5)}

    x, adjacency = torch.ones(6, 5), torch.ones(5, 5)
    assert ways([x, adjacency])[0] == {(0, 0, 0): 0}


def test_positional_arguments_are_no_list_of_samples():
    x, y, basis, scale = torch.ones(6, 5), torch.ones(6, 3), torch.ones(5, 5), torch.ones(1, 3)
    assert ways(x, basis, y, scale)[0] == {(0, 0): 0, (0, 2): 0}
    assert not any(LIST in way.values() for way in ways(x, y, x, y))


def test_other_inputs_are_split_beside_a_list():
    weights = [torch.ones(5, size) for size in (4, 7, 8, 9)]
    assert ways(torch.ones(6, 5), weights)[0] == {(0, 0): 0}


def test_a_slice_of_a_list_has_its_samples_and_their_labels():
    images = [torch.full((number,), float(number)) for number in range(1, 6)]
    given = CallArguments((images, torch.arange(5)), {"scale": torch.ones(2)})
    dims = {(0, 0): LIST, (0, 1): 0}
    split = batch_split(SimpleNamespace(place=Place(rank=1, size=2)), dims, given.total(dims))
    own = given.sliced(split, dims)

    assert given.total(dims) == 5
    assert [len(image) for image in own.args[0]] == [4, 5]
    assert own.args[1].tolist() == [3, 4]
    assert own.kwargs["scale"] is given.kwargs["scale"]


@pytest.mark.parametrize(
    ("value", "unequal"),
    [
        ([1, 1, 1], 0),
        ([1, 1, 2], 1),
        ([{"id": 1, "scale": 1.0}, {"id": 2, "scale": 1.0}], 1),
        ([{"id": 1, "scale": 1.0}, {"id": 2, "scale": 0.5}], 2),
        ({"sizes": [(3, 4), (3, 5)]}, 1),
        (["ab", "cd"], 1),
        (["ab", "abc"], 2),
        (np.ones((3, 2)), 0),
        (np.arange(3), 1),
        ([torch.zeros(1), torch.ones(1)], 0),
        ("text", 0),
    ],
)
def test_the_places_in_a_list_with_unequal_parts_are_found(value, unequal):
    assert len(unequal_values(CallArguments((torch.zeros(2), value)).both)) == unequal
