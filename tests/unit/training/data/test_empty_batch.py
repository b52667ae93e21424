"""An empty batch has the structure of the other batches of its collate function."""

from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import default_collate

from samestep.base.errors import UsageError
from samestep.training.data.sharded_loader import empty_batch

Box = namedtuple("Box", ["corner", "size"])
IMAGE = torch.ones(3, 2, 2)


class Encoding(UserDict):
    """A dict with a method, as tokenizers return it."""

    def to(self, device):
        return Encoding({key: value.to(device) for key, value in self.items()})


class Graph:
    """A batch whose class does not reveal its samples."""


def test_a_detection_batch_has_no_image_and_no_target():
    assert empty_batch(lambda samples: tuple(zip(*samples, strict=True)), (IMAGE, {"boxes": 1})) == ((), ())


def test_a_list_of_samples_becomes_an_empty_list():
    assert empty_batch(list, (IMAGE, 3)) == []


def test_arrays_have_length_0():
    images, labels = empty_batch(lambda samples: tuple(map(np.stack, zip(*samples, strict=True))), (IMAGE, 3))
    assert (images.shape, images.dtype) == ((0, 3, 2, 2), np.float32)
    assert labels.shape == (0,)


def test_padded_sequences_are_empty_in_the_dimension_of_the_samples():
    tokens, lengths = empty_batch(
        lambda samples: (pad_sequence(samples), torch.tensor([len(one) for one in samples])), torch.arange(5)
    )
    assert tokens.shape == (5, 0)
    assert lengths.shape == (0,)


def test_all_types_of_the_default_collate_function_are_kept():
    sample = OrderedDict(x=IMAGE, box=Box(np.zeros(2), "a"), parts=[1, 0.5])
    batch = empty_batch(default_collate, sample)
    assert type(batch) is OrderedDict
    assert batch["x"].shape == (0, 3, 2, 2)
    assert type(batch["box"]) is Box
    assert batch["box"].corner.shape == (0, 2)
    assert len(batch["box"].size) == 0
    assert [part.shape for part in batch["parts"]] == [(0,), (0,)]


def test_concatenated_samples_have_one_offset_and_a_count_of_0():
    def flat(samples):
        ends = torch.tensor([0, *(len(one) for one in samples)]).cumsum(0)
        return {"values": torch.cat(samples), "offsets": ends, "count": len(samples), "unit": "mm"}

    batch = empty_batch(flat, torch.arange(5))
    assert batch["values"].shape == (0,)
    assert batch["offsets"].tolist() == [0]
    assert (batch["count"], batch["unit"]) == (0, "mm")


def test_a_dict_keeps_its_class():
    batch = empty_batch(lambda samples: Encoding(ids=torch.stack(samples)), torch.arange(5))
    assert batch.to("cpu")["ids"].shape == (0, 5)


def test_a_packed_batch_has_no_sequence():
    packed = empty_batch(pack_sequence, torch.ones(3, 2))
    assert packed.data.shape == (0, 2)
    assert packed.batch_sizes.tolist() == [0, 0, 0]
    output, _ = torch.nn.LSTM(2, 4)(packed)
    assert output.data.shape == (0, 4)


def test_a_collate_function_that_squeezes_a_batch_of_one_is_supported():
    assert empty_batch(lambda samples: torch.stack(samples).squeeze(), torch.ones(1, 2)).shape == (0, 2)


def test_a_collate_function_that_modifies_its_samples_is_supported():
    batch = empty_batch(lambda samples: torch.stack([one.pop("x") for one in samples]), {"x": IMAGE})
    assert batch.shape == (0, 3, 2, 2)


def as_graph(samples):
    return Graph()


def by_index(samples):
    return dict(enumerate(samples))


def total(samples):
    return {"sum": torch.stack(samples).sum()}


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (as_graph, r"test_empty_batch\.Graph"),
        (by_index, "returns a dict"),
        (torch.nested.nested_tensor, "nested"),
        (total, "returns a dict of equal length"),
        (lambda samples: samples if len(samples) > 2 else samples[0], "a torch.Tensor of 2 .* a list of 4"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_unsupported_batch_is_refused_with_its_type_and_advice(collate, message):
    with pytest.raises(UsageError, match=message) as refusal:
        empty_batch(collate, IMAGE)
    assert "drop_last=True" in str(refusal.value)
