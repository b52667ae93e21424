"""Positions out of range are found before a kernel asserts, and inputs that are positions are recognized."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samestep.autopilot.equivalence.positions import CheckedPositions, PositionTrace
from support.strict_device import StrictDevice

NAN = float("nan")
SCORES = torch.zeros(5, 2, 4).log_softmax(2)
ONES, SIX, LABELS = torch.ones(3, 2), torch.full((1, 2), 6), torch.tensor([0, 2, 7])
ASSERTED = {
    "embedding": lambda: F.embedding(torch.tensor([0, -1]), ONES),
    "embedding with a norm": lambda: F.embedding(torch.tensor([3]), torch.ones(3, 2), max_norm=1.0),
    "embedding bag": lambda: F.embedding_bag(torch.tensor([[0, 3]]), ONES),
    "index": lambda: ONES[torch.tensor([-4])],
    "index of the second dimension": lambda: ONES[:, torch.tensor([2])],
    "index after a mask": lambda: ONES[torch.tensor([True, False, True]), torch.tensor([0, 2])],
    "assigned index": lambda: torch.ones(3).__setitem__(torch.tensor([3]), 1.0),
    "index put": lambda: ONES.index_put((torch.tensor([3]),), torch.ones(2)),
    "index select": lambda: ONES.index_select(1, torch.tensor([-1])),
    "index add": lambda: ONES.index_add(0, torch.tensor([3]), torch.ones(1, 2)),
    "index copy": lambda: ONES.index_copy(0, torch.tensor([3]), torch.ones(1, 2)),
    "index fill": lambda: ONES.index_fill(0, torch.tensor([-4]), 1.0),
    "index reduce": lambda: ONES.index_reduce(0, torch.tensor([3]), torch.ones(1, 2), "amax"),
    "gather": lambda: ONES.gather(1, SIX),
    "take": lambda: ONES.take(SIX),
    "put": lambda: ONES.put(SIX, torch.ones(1, 2)),
    "scatter": lambda: ONES.scatter(1, SIX, 1.0),
    "scatter add": lambda: ONES.scatter_add(0, SIX, torch.ones(1, 2)),
    "scatter reduce": lambda: ONES.scatter_reduce(0, SIX, torch.ones(1, 2), "sum"),
    "labels": lambda: F.cross_entropy(torch.ones(3, 4), LABELS),
    "labels that another loss ignores": lambda: F.cross_entropy(torch.ones(1, 4), torch.tensor([-1])),
    "labels of pixels": lambda: F.cross_entropy(torch.ones(1, 4, 3), LABELS[None]),
    "margins": lambda: F.multi_margin_loss(torch.ones(3, 4), LABELS),
    "many labels": lambda: F.multilabel_margin_loss(torch.ones(1, 3), LABELS[None]),
    "unpooling": lambda: F.max_unpool2d(torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 4), 2),
    "repeats": lambda: ONES.repeat_interleave(torch.tensor([1, -1, 1]), 0),
    "probabilities": lambda: torch.bernoulli(torch.tensor([0.5, NAN])),
    "probabilities in place": lambda: torch.ones(2).bernoulli_(torch.tensor([0.5, 1.1])),
    "rates": lambda: torch.poisson(torch.tensor([-1.0])),
    "binary targets": lambda: F.binary_cross_entropy(torch.tensor([0.5]), torch.tensor([2.0])),
    "binary scores": lambda: F.binary_cross_entropy(torch.tensor([NAN]), torch.tensor([1.0])),
    "unpooling of volumes": lambda: F.max_unpool3d(
        torch.ones(1, 1, 1, 1, 1), torch.full((1, 1, 1, 1, 1), 8), 2
    ),
    "draws of a distribution": lambda: torch.multinomial(torch.tensor([0.5, NAN]), 2, replacement=True),
    "masked scatter": lambda: ONES.masked_scatter(ONES > 0, torch.ones(5)),
    "assertion": lambda: torch._assert_async(torch.tensor(0)),
}


@pytest.mark.parametrize("operation", ASSERTED.values(), ids=ASSERTED)
def test_an_operation_that_would_assert_raises_before_its_kernel(operation):
    strict = StrictDevice()
    with strict(), pytest.raises(RuntimeError, match="device-side assert"):
        operation()
    assert strict.lost
    for mode in (torch.enable_grad(), torch.inference_mode()):
        strict = StrictDevice()
        with mode, strict(), CheckedPositions(), pytest.raises(IndexError):
            operation()
        assert not strict.lost


def test_sequences_and_repeats_beyond_their_memory_raise_before_their_kernel():
    """The CPU's kernels read what lies there."""
    for operation in (
        lambda: F.ctc_loss(SCORES, torch.tensor([[1, 2], [2, -1]]), (5, 5), (1, 2)),
        lambda: F.ctc_loss(SCORES, torch.tensor([1, 2, 4]), torch.tensor([5, 5]), torch.tensor([1, 2])),
        lambda: ONES.repeat_interleave(torch.tensor([1, 1, 2]), 0, output_size=3),
    ):
        with CheckedPositions(), pytest.raises(IndexError):
            operation()


RIGHT = {
    "embedding": lambda: F.embedding(torch.tensor([2, 0]), ONES),
    "no row": lambda: F.embedding(torch.tensor([], dtype=torch.long), ONES),
    "index from the end": lambda: ONES[torch.tensor([-3, 2]), torch.tensor([0, -2])],
    "mask": lambda: ONES[torch.tensor([True, False, True])],
    "offsets": lambda: F.embedding_bag(torch.tensor([0, 2]), ONES, torch.tensor([0, 2])),
    "fill from the end": lambda: ONES.index_fill(0, torch.tensor([-3]), 1.0),
    "ignored labels": lambda: F.cross_entropy(torch.ones(2, 4), torch.tensor([-100, 3])),
    "only ignored labels": lambda: F.cross_entropy(torch.ones(1, 4), torch.tensor([7]), ignore_index=7),
    "one score": lambda: F.cross_entropy(torch.ones(4), torch.tensor(3)),
    "probabilities": lambda: torch.bernoulli(torch.tensor([0.0, 1.0])),
    "chance": lambda: torch.ones(2).bernoulli_(0.5),
    "binary": lambda: F.binary_cross_entropy(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])),
    "assertion": lambda: torch._assert_async(torch.tensor(2)),
    "draws": lambda: torch.multinomial(torch.tensor([[0.5, 0.0], [1.0, 2.0]]), 4, replacement=True),
    "repeats": lambda: ONES.repeat_interleave(torch.tensor([1, 0, 2]), 0, output_size=3),
    "padded sequences": lambda: F.ctc_loss(SCORES, torch.tensor([[1, -1], [2, 3]]), (5, 5), (1, 2)),
    "sequences in a row": lambda: F.ctc_loss(SCORES, torch.tensor([1, 2, 3]), (5, 5), (1, 2)),
}


@pytest.mark.parametrize("operation", RIGHT.values(), ids=RIGHT)
def test_positions_in_range_pass(operation):
    strict = StrictDevice()
    with strict(), CheckedPositions():
        operation()
    assert not strict.lost


def traced(function, *inputs):
    trace = PositionTrace()
    trace.follow(((place,), tensor) for place, tensor in enumerate(inputs))
    with trace:
        function(*inputs)
    uses = trace.uses
    return {place for (place,) in uses.indices}, {place: set(of) for (place,), of in uses.ignored.items()}


TABLE = nn.Embedding(20, 3)


def written_to_a_view(x):
    places = torch.zeros(2, 3, dtype=torch.long)
    places[:, 1:] = x
    TABLE(places)


def test_an_input_is_an_index_whatever_computes_with_it():
    x = torch.tensor([[1, 2], [3, 4]])
    for function in (
        TABLE,
        lambda x: TABLE(x.view(-1)[1:] + 1),
        lambda x: TABLE((x > 2).long()),
        lambda x: TABLE(x.cumsum(1) * 2),
        lambda x: TABLE(x.float().round().long()),
        lambda x: torch.ones(5)[x],
        lambda x: F.one_hot(x, 5),
        lambda x: torch.ones(2, 5).gather(1, x),
        lambda x: torch.bincount(x.flatten()),
        lambda x: torch.arange(9).index_select(0, x[0]),
        lambda x: TABLE(torch.where(x > 2, x, 0)),
        written_to_a_view,
    ):
        assert traced(function, x) == ({0}, {})


def test_masks_and_labels_are_no_indices():
    mask, labels = torch.tensor([True, False]), torch.tensor([1, -5])

    def model(x, mask, labels):
        scores = TABLE(x)[mask]
        F.cross_entropy(scores.repeat(2, 1), labels, ignore_index=-5)
        return x[mask].float().mean()

    for mode in (torch.enable_grad(), torch.inference_mode()):
        with mode:
            assert traced(model, torch.tensor([3, 4]), mask, labels) == ({0}, {2: {-5}})


def test_values_from_a_table_of_positions_are_those_of_the_table():
    def model(x, order):
        TABLE(order[x])

    assert traced(model, torch.tensor([1]), torch.tensor([5, 6])) == ({0, 1}, {})


def test_integers_that_reach_an_operation_of_another_library_are_unchecked():
    with torch.library._scoped_library("samestep_tests", "DEF") as library:
        library.define("rows(Tensor x) -> Tensor")
        library.impl("rows", lambda x: x + 1, "CPU")
        trace = PositionTrace()
        inputs = torch.tensor([1]), torch.tensor([2])
        trace.follow(((place,), tensor) for place, tensor in enumerate(inputs))
        with trace:
            torch.ops.samestep_tests.rows(inputs[1] * 2)
        assert trace.uses.unchecked == {(1,)}


def test_memory_of_a_freed_tensor_is_not_followed():
    def model(x, y):
        for _ in range(50):
            x + 1  # its memory is free at once
            TABLE(torch.zeros(2, dtype=torch.long) + 3)

    assert traced(model, torch.tensor([1, 2]), torch.tensor([1])) == (set(), {})


def test_classes_out_of_range_are_found_in_the_scatter_of_a_device():
    """CUDA's `one_hot` compares nothing, and scatters."""
    with CheckedPositions(), pytest.raises(IndexError):
        torch.zeros(2, 5).scatter_(-1, torch.tensor([[-100], [1]]), 1)
