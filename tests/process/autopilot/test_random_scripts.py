"""Random serial scripts have equal results on 1, 2 and 3 ranks, or are refused; none differs silently."""

import pytest

from support.random_scripts.runs import DIFFERENT, compare

SEEDS = 100
"""Scripts of this test; `make random` compares thousands."""
AT_ONCE = 5


@pytest.mark.timeout(300)  # the pool of ranks limits each call
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_no_random_script_differs_silently(processes, tmp_path, first):
    found = [one for seed in range(first, first + AT_ONCE) for one in compare(processes, seed, tmp_path)]

    different = [str(one) for one in found if one.found == DIFFERENT]
    assert not different, "\n".join(different)
