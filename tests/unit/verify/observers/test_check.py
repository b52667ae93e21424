"""Changes of a tensor are found, and a tensor whose memory cannot be read is never equal to itself."""

import torch

from samestep.verify.observers.check import checksum, is_zero, version


class Sharded(torch.Tensor):
    """A tensor that holds its values in another one, as `DTensor` does."""

    @staticmethod
    def __new__(cls, local):
        made = torch.Tensor._make_wrapper_subclass(cls, local.shape)
        made._local_tensor = local
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def test_a_change_of_one_bit_changes_the_checksum_and_the_version():
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        one = torch.ones(3, 2, dtype=dtype).t()
        before = checksum(one), version(one)
        assert (checksum(one.clone()), version(one)) == before
        one[0, 1] *= 1 + 2**-7
        assert checksum(one) != before[0]
        assert version(one) != before[1]


def test_the_version_is_that_of_the_tensor_and_not_of_its_copy():
    one = torch.zeros(2)
    versions = [version(one), version(one)]
    one.data.add_(0)
    versions.append(version(one))
    one.add_(0)
    versions.append(version(one))
    assert [other == versions[0] for other in versions] == [True, True, True, False]


def test_a_missing_tensor_and_zeros_are_zero():
    sparse = torch.sparse_coo_tensor([[0, 0]], [1.0, 0.0], (2,), check_invariants=True)
    found = [
        is_zero(one) for one in (None, torch.zeros(2), torch.tensor([0.0, torch.nan]), sparse, sparse * 0)
    ]
    assert found == [True, True, False, False, True]


def test_the_part_of_a_rank_is_read():
    local = torch.zeros(2)
    one = Sharded(local)
    before = checksum(one), version(one), is_zero(one)
    local += 1
    assert before == (checksum(torch.zeros(2)), before[1], True)
    assert (checksum(one), version(one) == before[1], is_zero(one)) == (checksum(torch.ones(2)), False, False)


def test_a_tensor_without_readable_memory_is_unequal_to_itself():
    one = torch.empty(2, device="meta")
    assert checksum(one) != checksum(one)
    assert not is_zero(one)
