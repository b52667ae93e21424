"""A job without a scheduler: a process of its own on this host, which outlives the terminal."""

import os
import signal
import subprocess
from pathlib import Path

from samestep.submit.follow import Seen


class DetachedFollowed:
    """A script that runs in a session of its own, with its output in a file.

    Args:
        script: what bash is to run.
        log: takes all that it prints.
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
        # The whole group: mpirun ends the workers on the other hosts.
        self.stop = f"kill -{signal.SIGTERM.name[3:]} -- -{os.getpgid(self._process.pid)}"

    def look(self) -> Seen:
        """Return what is known of it now."""
        code = self._process.poll()
        if code is None:
            return Seen(words="runs", log=self._log)
        code = 128 - code if code < 0 else code
        words = f"has failed, exit code {code}" if code else "has ended well"
        return Seen(words=words, log=self._log, exit_code=code)
