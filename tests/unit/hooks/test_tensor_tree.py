"""Tensors are found and replaced in any container; containers keep their classes."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from samestep.hooks import tensor_tree
from samestep.hooks.tensor_tree import data_in, leaves, mapped, parts_beside_tensors, tensors_in, text

Pair = namedtuple("Pair", ["x", "y"])


@dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    name: str


class Fields(OrderedDict):
    """A dict whose entries are attributes too, like the output objects of libraries."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def fields(**entries):
    made = Fields()
    for key, value in entries.items():
        made[key] = value
    return made


ONE, TWO = torch.ones(2), torch.zeros(3)


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (ONE, [()]),
        ((ONE, [TWO, "text"]), [(0,), (1, 0)]),
        (Pair(ONE, {"a": TWO}), [(0,), (1, "a")]),
        (Output(ONE, "name"), [("logits",)]),
        (UserDict(mask=ONE), [("mask",)]),
        (fields(loss=ONE, hidden=(TWO,)), [("loss",), ("hidden", 0)]),
        ((1, None, "text"), []),
        (pack_sequence([torch.ones(2), torch.ones(1)]), []),
    ],
)
def test_tensors_are_found_with_their_paths_and_replaced(value, paths):
    assert [path for path, _ in leaves(value)] == paths

    doubled = mapped(value, lambda _, tensor: tensor * 2)

    assert type(doubled) is type(value)
    for (path, before), (_, after) in zip(leaves(value), leaves(doubled), strict=True):
        assert torch.equal(after, before * 2), path


def test_an_output_object_gets_the_new_tensors_as_attributes_too():
    changed = mapped(fields(loss=ONE), lambda _, tensor: tensor * 3)
    assert torch.equal(changed.loss, ONE * 3)
    assert torch.equal(changed["loss"], ONE * 3)


def test_the_original_structure_does_not_change():
    given = {"a": [ONE]}
    mapped(given, lambda _, tensor: tensor * 2)
    assert given["a"][0] is ONE


def test_a_path_is_written_as_python_source():
    assert text((0, "mask")) == "[0]['mask']"


IMAGE, LABEL = torch.ones(3, 2, 2), torch.tensor(1)
WEIGHT = torch.ones(3, requires_grad=True)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (ONE, [ONE]),
        ((ONE, TWO), [ONE]),
        ({"labels": LABEL, "x": ONE}, [ONE]),
        ([ONE, TWO], [ONE, TWO]),  # one sample each
        ([ONE, torch.tensor([1, 2])], [ONE]),  # inputs and labels
        ([IMAGE, ONE, IMAGE], [IMAGE, IMAGE]),
        ([(IMAGE, LABEL), (IMAGE, LABEL)], [IMAGE, IMAGE]),
        ((WEIGHT, ONE), [ONE]),
        ([WEIGHT, LABEL, "text"], []),
        (pack_sequence([ONE]), [ONE]),
    ],
)
def test_the_inputs_of_a_batch_are_found(value, found):
    assert [tensor.shape for tensor in data_in(value)] == [tensor.shape for tensor in found]
    assert [tensor.dtype for tensor in data_in(value)] == [tensor.dtype for tensor in found]


class Layer:
    def __init__(self, keys):
        self.keys, self.is_full = keys, False


class Cache:
    def __init__(self, *layers):
        self.layers = list(layers)


def test_tensors_in_the_fields_of_objects_are_found_and_replaced():
    cache = Cache(Layer(torch.ones(2)), Layer(torch.zeros(2)))
    found = dict(leaves(cache))
    doubled = mapped(cache, lambda _, tensor: tensor + 1)

    assert list(found) == [("layers", 0, "keys"), ("layers", 1, "keys")]
    assert [float(layer.keys[0]) for layer in doubled.layers] == [2, 1]
    assert not doubled.layers[0].is_full
    assert [float(layer.keys[0]) for layer in cache.layers] == [1, 0]


def test_objects_that_refer_to_each_other_are_searched_to_a_limited_depth():
    one, other = Layer(torch.ones(2)), Layer(torch.zeros(2))
    one.other, other.other = other, one

    assert ("other", "keys") in dict(leaves(one))
    assert [tensor.shape for tensor in data_in((one, torch.ones(3)))] == [(2,)]
    assert ("other",) * 8 in dict(parts_beside_tensors(one))


def test_objects_that_all_refer_to_each_other_are_entered_once():
    """Else a trainer among the attributes of a model has some millions of paths: each call took a second."""
    layers = [Layer(torch.full((), number)) for number in range(40)]
    for layer in layers:
        layer.all = layers

    assert [int(tensor) for tensor in tensors_in(layers[0])] == [0, *range(1, 40)]


def test_the_words_of_a_vocabulary_are_not_searched(monkeypatch):
    """Each call searches the attributes of its module for tensors."""
    searched = []
    parts_of = tensor_tree.parts_of
    monkeypatch.setattr(tensor_tree, "parts_of", lambda value: searched.append(value) or parts_of(value))
    vocabulary = {f"word{number}": number for number in range(1000)}
    assert [*tensors_in([vocabulary, torch.ones(1), [*vocabulary]])] == [1]
    assert len(searched) < 10
