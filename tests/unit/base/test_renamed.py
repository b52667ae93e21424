"""Former names of arguments still work, and warn."""

import warnings

import pytest

from samestep.base.renamed import renamed_arguments


@renamed_arguments(to="dst", source="src")
def exchange(tensor, dst=None, *, src=None):
    return tensor, dst, src


def test_a_former_name_is_accepted_with_a_warning_that_has_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"exchange\(to=\) is now exchange\(dst=\)") as caught:
        assert exchange(1, to=2) == (1, 2, None)
    assert [one.filename for one in caught] == [__file__]
    with pytest.warns(DeprecationWarning, match="is now") as caught:
        assert exchange(1, to=2, source=3) == (1, 2, 3)
    assert len(caught) == 2


def test_present_names_and_positions_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert exchange(1, 2, src=3) == exchange(1, dst=2, src=3) == (1, 2, 3)


def test_both_names_of_an_argument_are_refused():
    with pytest.raises(TypeError, match="both dst= and its old name to="):
        exchange(1, to=2, dst=2)


def test_an_unknown_name_is_still_refused():
    with pytest.raises(TypeError, match="destination"):
        exchange(1, destination=2)
