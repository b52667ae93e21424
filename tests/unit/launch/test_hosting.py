import pytest

from samestep.launch.hosting import Ending, exited


@pytest.mark.parametrize(
    ("asked", "code"), [(None, 0), (0, 0), (7, 7), (-1, 255), (256, 0), (257, 1), (True, 1)]
)
def test_an_exit_code_is_what_the_system_keeps_of_it(asked, code):
    assert exited(SystemExit(asked)) == Ending(exit_code=code)


def test_any_other_exit_value_is_told_and_a_failure():
    ending = exited(SystemExit("no data"))
    assert (ending.exit_code, ending.traceback) == (1, "no data\n")
