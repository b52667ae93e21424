"""The ways in which inputs may be split."""

from dataclasses import dataclass

import torch

from samestep.autopilot.split.call_plans import CallArguments, candidates


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: torch.Tensor


def ways(*args):
    return list(candidates(CallArguments(args), 2))


def test_a_list_of_samples_of_different_sizes_is_not_split_by_one_of_them():
    graphs = [Graph(torch.ones(number, 1), torch.ones(number + 10, 3)) for number in (5, 6, 7, 8, 7)]

    features = {(0, 0, number, "edges"): 1 for number in range(5)}  # of equal size in all graphs
    assert ways(graphs) == [features]
    assert ways(tuple(graphs)) == [features]
    assert ways([[graph.nodes, graph.edges] for graph in graphs]) == [
        {(0, 0, number, 1): 1 for number in range(5)}
    ]


def test_a_list_of_inputs_is_split_with_the_samples():
    crops = [torch.ones(6, 3, size, size) for size in (8, 8, 4, 4, 4)]
    assert ways(crops)[0] == {(0, 0, number): 0 for number in range(5)}

    x, adjacency = torch.ones(6, 5), torch.ones(5, 5)
    assert ways([x, adjacency])[0] == {(0, 0, 0): 0}


def test_other_inputs_are_split_beside_a_list():
    weights = [torch.ones(5, size) for size in (4, 7, 8, 9)]
    assert ways(torch.ones(6, 5), weights)[0] == {(0, 0): 0}


def test_parts_of_a_list_count():
    images = [torch.ones(3, size, size) for size in (8, 9, 10, 11)]
    assert CallArguments((images,)).in_list() == 4
    assert CallArguments((tuple(images),)).in_list() == 4
    assert CallArguments(((torch.ones(2, 6, 4), torch.ones(2, 6, 4)),)).in_list() == 0  # an LSTM's state
