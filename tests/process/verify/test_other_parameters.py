"""Scripts whose optimizers hold a model's parameters in other orders, groups or parts than the reference."""

from pathlib import Path

import pytest

from gallery_ddp import manifest

GALLERY = Path(manifest.__file__).parent
SERIAL = GALLERY / "averaged_by_hand_serial.py"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)"
STEP = "            optimizer.step()\n"
GROUPS = (
    "optimizer = torch.optim.SGD([{'params': [p for p in model.parameters() if p.dim() > 1]}, "
    "{'params': [p for p in model.parameters() if p.dim() < 2]}], lr=0.1, momentum=0.5)"
)
BACKWARDS = "optimizer = torch.optim.SGD(list(model.parameters())[::-1], lr=0.1, momentum=0.5)"
TWO_RATES = GROUPS.replace("< 2]", "< 2], 'lr': 0.2")
SHARDED = OPTIMIZER.replace("model.parameters()", "list(model.parameters())[rank::size]")
GATHERED = """            optimizer.step()
            for k, p in enumerate(model.parameters()):
                dist.broadcast(p.data, src=k % size)
"""
ZERO = (
    "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
    "    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.5)"
)
FLAT = """length = sum(p.numel() for p in model.parameters()) // size
    def flat(tensors):
        return torch.cat([t.flatten() for t in tensors])[rank * length : (rank + 1) * length].clone()
    own = nn.Parameter(flat(p.data for p in model.parameters()))
    optimizer = torch.optim.SGD([own], lr=0.1, momentum=0.5)"""
FLAT_STEP = """            own.grad = flat(p.grad for p in model.parameters())
            optimizer.step()
            parts = [torch.empty_like(own.data) for _ in range(size)]
            dist.all_gather(parts, own.data)
            nn.utils.vector_to_parameters(torch.cat(parts), model.parameters())
"""


@pytest.fixture
def changed(tmp_path):
    """Returns a function that writes the script that averages by hand with some text replaced."""

    def write(*changes):
        text = (GALLERY / "averaged_by_hand.py").read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return write


def outcome(report):
    return report["verdict"], [one["code"] for one in report["findings"]]


def test_other_groups_are_the_same_training(verifier, changed):
    path = changed((OPTIMIZER, GROUPS))
    report = verifier.verify(path, steps=4, against=SERIAL)
    assert outcome(report) == ("same", []), report["findings"]
    assert "parameters" not in report["not_compared"]


def test_parameters_of_other_names_are_matched_by_their_initial_values(verifier, changed):
    path = changed((OPTIMIZER, BACKWARDS), ("conv1", "first"), ("conv2", "second"))
    assert outcome(verifier.verify(path, steps=4, against=SERIAL)) == ("same", [])


def test_another_rate_of_one_group_is_found(verifier, changed):
    report = verifier.verify(changed((OPTIMIZER, TWO_RATES)), steps=4, against=SERIAL)
    assert outcome(report) == ("different", ["learning-rate"])
    assert report["findings"][0]["max_relative_deviation"] == pytest.approx(0.5**0.5)


def sharded():
    return (OPTIMIZER, SHARDED), ("optimizer.zero_grad", "model.zero_grad"), (STEP, GATHERED)


def test_an_optimizer_for_a_part_of_the_parameters_on_each_rank_is_the_same_training(verifier, changed):
    report = verifier.verify(changed(*sharded()), workers=(2, 3), steps=4)
    assert outcome(report) == ("same", []), report["findings"]
    assert "parameters" not in report["not_compared"]


def test_a_fault_is_found_where_each_rank_has_a_part_of_the_parameters(verifier, changed):
    path = changed(*sharded(), ("        param.grad.data /= size\n", ""))
    assert outcome(verifier.verify(path, steps=4)) == ("different", ["sum-not-mean"])


def test_updates_of_other_ranks_that_are_not_gathered_are_found(verifier, changed):
    path = changed(*sharded()[:2])
    assert outcome(verifier.verify(path, steps=4))[0] == "different"


def test_torchs_sharded_optimizer_is_the_same_training(verifier, changed):
    path = changed((OPTIMIZER, ZERO))
    assert outcome(verifier.verify(path, steps=4, against=SERIAL)) == ("same", [])


def test_parts_of_flattened_parameters_are_reported_as_not_compared(verifier, changed):
    report = verifier.verify(changed((OPTIMIZER, FLAT), (STEP, FLAT_STEP)), steps=4)
    assert outcome(report) == ("same", []), report["findings"]
    assert "parameters" in report["not_compared"]
