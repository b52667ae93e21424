"""A loop that the clock ends is found in a script's source."""

import ast

import pytest

from samestep.verify.clock_conditions import ends_loops_by_clock

BEGIN = "import time\nstart = time.time()\n"
ENDED = [
    "while time.time() - start < 3:\n    step()",
    "budget = start + 3\nwhile running and time.perf_counter() < budget:\n    step()",
    "for x in data:\n    elapsed = time.monotonic_ns() - start\n    if elapsed > 3:\n        break",
    "for x in data:\n    if (datetime.now() - begin).total_seconds() > 3:\n        raise End",
    "def left():\n    return 3 - (time.time() - start)\nwhile left() > 0:\n    step()",
    "class T:\n    def over(self):\n        return time.time() > self.end\nwhile not T.over():\n    step()",
    "if max(time.time() - start, 0.0) < 3:\n    pass\nelse:\n    raise SystemExit",
]
NOT_ENDED = [
    "for x in data:\n    step()\n    print(time.time() - start)",
    "for x in data:\n    if time.time() - saved > 60:\n        save()\n        saved = time.time()",
    "log = {'seconds': time.time() - start, 'loss': loss}\nif log['loss'] < best:\n    raise SystemExit",
    "while step(seconds=time.time() - start) > best:\n    pass",
]


@pytest.mark.parametrize("text", ENDED)
def test_a_loop_that_the_clock_ends_is_found(text):
    assert ends_loops_by_clock([ast.parse(BEGIN + text)])


@pytest.mark.parametrize("text", NOT_ENDED)
def test_a_clock_that_ends_nothing_is_no_reason_for_other_numbers_of_steps(text):
    assert not ends_loops_by_clock([ast.parse(BEGIN + text)])
