"""Random serial scripts have equal results on 1, 2 and 3 workers; none differs silently."""

import pytest

from support.random_scripts.runs import DIFFERENT, compare

SEEDS = 100
"""Scripts of the long test; `make random` compares thousands."""
SHORT_SEEDS = 10
AT_ONCE = 5


def different(processes, seeds, folder, sizes):
    found = [one for seed in seeds for one in compare(processes, seed, folder, sizes)]
    return [str(one) for one in found if one.found == DIFFERENT]


@pytest.mark.parametrize("first", range(0, SHORT_SEEDS, AT_ONCE))
def test_no_random_script_differs_silently(processes, tmp_path, first):
    assert different(processes, range(first, first + AT_ONCE), tmp_path, (2,)) == []


@pytest.mark.long
@pytest.mark.timeout(300)  # the pool of ranks limits each call
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_none_of_many_random_scripts_differs_silently(processes, tmp_path, first):
    assert different(processes, range(first, first + AT_ONCE), tmp_path, (2, 3)) == []
