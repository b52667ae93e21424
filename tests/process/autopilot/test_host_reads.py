"""After its check, a split call reads nothing from a device: samestep's code does not make the host wait."""

import numpy as np
import pytest

from support import host_read_cases as cases


@pytest.mark.parametrize("name", cases.CASES)
def test_split_calls_read_nothing_from_the_device(processes, name):
    serial = np.array(cases.steps(cases.CASES[name]))
    for found, reads, split, lines in processes.run(cases.counted, 2, name):
        np.testing.assert_allclose(found, serial, rtol=0, atol=1e-11, equal_nan=True)
        assert split == cases.WARM_UP + cases.COUNTED, lines
        assert reads == []


def test_an_output_that_begins_to_depend_on_samples_ends_the_run_before_the_optimizer_steps(processes):
    one, other = processes.run(cases.until_refused, 2)
    (message, steps), split, _ = one
    assert "did not depend on its samples" in message
    assert steps == 3
    assert split == 4
    assert one == other
