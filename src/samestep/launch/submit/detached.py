"""Runs a job without a scheduler, as a process of this host that outlives the terminal."""

import os
import signal
import subprocess
from pathlib import Path

from samestep.launch.submit.follow import JobStatus


class DetachedJob:
    """A script that runs in its own session, with its output in a file.

    Args:
        script: the script that bash runs.
        log: the new file for its output.
    """

    def __init__(self, script: Path, log: Path) -> None:
        with log.open("xb") as output:
            self._process = subprocess.Popen(
                ["bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = log
        self.name = f"job {self._process.pid}"
        self.number = str(self._process.pid)
        # The signal goes to the whole process group, so that mpirun ends the workers on the other hosts.
        self.stop = f"kill -{signal.SIGTERM.name[3:]} -- -{os.getpgid(self._process.pid)}"

    def status(self) -> JobStatus:
        """Return the present state of the script."""
        code = self._process.poll()
        if code is None:
            return JobStatus(words="runs", log=self._log)
        code = 128 - code if code < 0 else code
        words = f"has failed, exit code {code}" if code else "has ended well"
        return JobStatus(words=words, log=self._log, exit_code=code)
