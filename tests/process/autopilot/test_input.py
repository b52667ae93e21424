"""All ranks of a serial script get what rank 0 reads from standard input."""

import builtins
from unittest.mock import patch

from samestep.autopilot.replicated_script import single_process_view


def answers(world):
    lines = iter(["first"])

    def read(prompt):
        assert world.place.is_main
        for line in lines:
            return prompt + line
        raise EOFError

    with patch.object(builtins, "input", read), single_process_view(world):
        found = [input("? ")]
        try:
            input()
        except EOFError:
            found.append("end")
    return found


def test_the_end_of_the_input_is_one_on_all_ranks(processes):
    assert processes.run(answers, 2) == [["? first", "end"]] * 2
