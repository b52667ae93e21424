"""A tier that starts more processes than its budget is named."""

from collections import Counter

import pytest

from support import process_budget


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        ("end_to_end/systems/test_mpi.py", "systems"),
        ("end_to_end/test_run.py", "end_to_end"),
        ("ranks/data/test_shard.py", "ranks"),
        ("test_words.py", "unit"),
    ],
)
def test_a_test_belongs_to_the_tier_of_its_folder(path, tier):
    assert process_budget.tier_of(path) == tier


def test_a_tier_above_its_budget_is_named(monkeypatch):
    monkeypatch.setattr(process_budget, "BUDGETS", {"ranks": 3, "process": 3})
    monkeypatch.setattr(process_budget, "started", Counter(ranks=4, process=3))

    (line,) = process_budget.exceeded()

    assert "tests/ranks started 4" in line
