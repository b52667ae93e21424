"""A process finds the ancestors that belong to the same user, nearest first, with their environments."""

import os
import subprocess
import sys

NEAREST = """
from samestep.base.process_identity import ancestors
pid, environment = next(ancestors())
print(pid, environment["SAMESTEP_TEST"])
"""


def test_the_nearest_ancestor_of_a_command_is_the_process_that_started_it(monkeypatch):
    monkeypatch.setenv("SAMESTEP_TEST", "child")
    shell = ["/bin/sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, NEAREST]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as started:
        said, _ = started.communicate()

    assert said.split() == [str(started.pid), "child"]
    assert started.pid != os.getpid()
