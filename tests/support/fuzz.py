"""Feeds readers with wrong content, each in a kept child process with a time and a memory limit.

Every reader gets one clear line and exit code 2 out of wrong content, or a right result: never a traceback, a
wait, or a gigabyte. By hand: ``python -m support.fuzz --reader csv --count 1000 --seed 1``; a case that
failed is repeated by its number: ``--first 417 --count 1``.
"""

import argparse
import faulthandler
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.process_pool import fork_server

SECONDS = 5.0
"""How long a reader may take for one case."""
MEMORY = 1 << 30
"""Bytes of address space that a reader may take, beyond what its process has before."""
LONGEST = 1000
"""Characters of a line that is still clear."""
_BURIED = ("Traceback", "MemoryError", "RecursionError")
"""What a line holds that passes a fault on."""


@dataclass(frozen=True)
class Answer:
    """The answer of a reader to one case.

    Args:
        kind: ``read``; ``refused``, by one line; ``failed``, ``slow`` or ``died``, which are faults.
        text: the line, or the traceback.
        seconds: how long it took.
    """

    kind: str
    text: str = ""
    seconds: float = 0.0

    @property
    def is_right(self):
        return self.kind in ("read", "refused")


class Fuzzed:
    """A reused child process that reads content, and is replaced if it does not answer.

    Args:
        seconds: how long a case may take.
    """

    def __init__(self, *, seconds=SECONDS):
        self._seconds = seconds
        self._folder = Path(tempfile.mkdtemp(prefix="samestep-fuzz-"))
        self._process = self._pipe = None
        self._begun = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def read(self, reader, content):
        """Return the answer of `reader`, a name, to `content`."""
        return self._asked((reader, content))

    def case(self, reader, *, seed, number):
        """Return the answer of `reader` to its case with this `seed` and `number`."""
        return self._asked((reader, (seed, number)))

    def _asked(self, message):
        if self._process is None:
            self._begin()
        if message[0] not in self._begun:  # which may take long, and is no case
            self._begun.add(message[0])
            self._pipe.send((message[0], None))
            self._await()
        begun = time.monotonic()
        try:
            self._pipe.send(message)
            if not self._pipe.poll(self._seconds + 1.0):  # a second for what writes the case
                self._process.kill()
                self._end()
                return Answer("slow", f"no answer within {self._seconds:g} s", time.monotonic() - begun)
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(5)
            code = self._process.exitcode
            self._end()
            return Answer("died", f"exit code {code}", time.monotonic() - begun)
        if not answer.is_right:
            self._end()
        elif answer.seconds > self._seconds:
            return Answer("slow", f"{answer.seconds:.1f} s for {answer.kind}: {answer.text}", answer.seconds)
        return answer

    def _begin(self):
        context = fork_server()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._folder), name="fuzzed")
        self._process.start()
        self._begun = set()
        theirs.close()

    def _await(self):
        if not self._pipe.poll(120):
            raise TimeoutError("the child that reads did not begin")
        self._pipe.recv()

    def _end(self):
        if self._process is None:
            return
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._process = None


def _serve(pipe, folder):
    """Run the child: answer until the other end is closed."""
    from support.fuzz_readers import FAULTY, READERS

    faulthandler.enable()
    number = 0
    while True:
        try:
            name, content = pipe.recv()
        except (EOFError, ConnectionError):
            return
        reader = READERS.get(name, FAULTY)
        if content is None:
            _begin(reader)
            pipe.send("ready")
            continue
        number += 1
        place = folder / f"{name}-{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if isinstance(content, tuple):
            content = reader.case(Random(f"{name}/{content[0]}/{content[1]}"))
        pipe.send(_answer(reader, content, place))
        shutil.rmtree(place, ignore_errors=True)


def _begin(reader):
    """Load everything that a reader needs, and limit the memory that it allocates afterwards."""
    none = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (none, none))
    reader.begin()
    reader.valid()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, none))


def _answer(reader, content, place):
    from samestep.base.errors import Error

    run = reader.prepared(content, place)
    begun = time.monotonic()
    try:
        said = run()
    except Error as error:
        kind, text = _judged(str(error), error.exit_code)
    except BaseException:
        kind, text = "failed", traceback.format_exc()
    else:
        kind, text = ("read", "") if said is None else _judged(*said)
    return Answer(kind, text, time.monotonic() - begun)


def _judged(text, code):
    """Return whether an error has the required form, and the error."""
    from samestep.base.errors import one_line

    line = one_line(text)
    is_clear = 0 < len(line) <= LONGEST and line.isprintable() and not any(one in line for one in _BURIED)
    return ("refused" if code == 2 and is_clear else "failed", f"exit code {code}: {text}")


def main():
    from support.fuzz_readers import READERS

    parser = argparse.ArgumentParser()
    parser.add_argument("--reader", choices=[*READERS, "all"], default="all")
    parser.add_argument("--count", type=int, default=500, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print every line")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    failed = 0
    with Fuzzed() as fuzzed:
        for name in READERS if asked.reader == "all" else [asked.reader]:
            failed += _fuzz(fuzzed, name, asked)
    sys.exit(failed > 0)


def _fuzz(fuzzed, name, asked):
    """Print the answers of one reader to all its cases; return the number of faults."""
    kinds, seen, longest = Counter(), Counter(), 0.0
    for number in range(asked.first, asked.first + asked.count):
        answer = fuzzed.case(name, seed=asked.seed, number=number)
        kinds[answer.kind] += 1
        longest = max(longest, answer.seconds)
        if asked.show:
            print(f"{name} {number}: {answer.kind} {answer.text}")
        if not answer.is_right:
            last = answer.text.strip().splitlines()[-1][:160]
            seen[last] += 1
            if seen[last] == 1:
                print(
                    f"--- {name} --seed {asked.seed} --first {number}: {answer.kind}\n{answer.text[-3000:]}"
                )
    print(f"{name}: {dict(kinds)}, at most {longest:.2f} s", flush=True)
    for text, count in seen.most_common():
        print(f"  {count} x {text}")
    return sum(seen.values())


if __name__ == "__main__":
    main()
