"""Runs commands of another interpreter, each in a process forked from one that has loaded torch there."""

import json
import os
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

from support.commands import Ended, environment, finish

_DEADLINE_S = 110.0


class KeptInterpreter:
    """An interpreter that runs the commands of several tests.

    Args:
        python: its path.
        paths: folders of modules for its commands.
        changes: variables of its commands, beside those of `support.commands.environment`.
    """

    def __init__(self, python: Path, *paths: Path, **changes: str) -> None:
        own = os.pathsep.join(map(str, (*paths, Path(__file__).parents[1])))
        self._process = subprocess.Popen(
            [python, "-m", "support.kept_interpreter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=own, **changes),
            start_new_session=True,
        )

    def run(self, folder: Path, *words: object) -> Ended:
        """Run ``samestep WORDS`` in a folder to its end; if there is one word, the script of that path."""
        try:
            self._process.stdin.write(json.dumps([str(folder), list(map(str, words))]) + "\n")
            self._process.stdin.flush()
            return Ended(*json.loads(self._process.stdout.readline()))
        except BaseException:  # such as this test's timeout: the next test would read this answer
            self._process.kill()
            raise

    def close(self) -> None:
        """End the interpreter."""
        self._process.communicate()


def _serve() -> None:
    from support.forked_commands import start, start_script

    for line in sys.stdin:
        folder, words = json.loads(line)
        os.chdir(folder)
        started = start(*words) if len(words) > 1 else start_script(Path(words[0]))
        print(json.dumps(astuple(finish(started, _DEADLINE_S))), flush=True)


if __name__ == "__main__":
    _serve()
