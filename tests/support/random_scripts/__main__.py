"""Compares random scripts on one and several workers, and counts the results.

python -m support.random_scripts --count 2000 --start 0 --sizes 2,3 --keep DIR
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from samestep.base.folders import absolute
from support.process_pool import ProcessPool
from support.random_scripts.runs import CLASSES, DIFFERENT, UNSTABLE, SerialRunFailed, compare
from support.random_scripts.scripts import make_script

FRESH_AFTER = 250
"""The number of scripts after which the process is started again, since each leaks some memory."""


def main():
    """Run the command line; the exit code is 1 if a script differs or fails on one rank."""
    options = _options()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="random-scripts-"))
    sizes = tuple(map(int, options.sizes.split(",")))
    seeds = options.seeds or range(options.start, options.start + options.count)
    counts, reasons, failed = Counter(), Counter(), []
    began = time.monotonic()
    pool = ProcessPool(timeout_s=options.timeout)
    try:
        for done, seed in enumerate((seed for seed in seeds if _is_wanted(seed, options)), 1):
            if done % FRESH_AFTER == 0:
                pool.close()
            _count(pool, seed, folder, sizes, counts, reasons, failed)
            if done % options.every == 0:
                print(
                    f"{done} scripts, to seed {seed}, {time.monotonic() - began:.0f} s: {_totals(counts)}",
                    flush=True,
                )
    finally:
        pool.close()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    _report(counts, reasons, failed)
    return bool(failed)


def _options():
    parser = argparse.ArgumentParser(
        prog="python -m support.random_scripts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=2000, help="scripts to compare (default: 2000)")
    parser.add_argument(
        "--start", type=int, default=0, help="first seed (default: 0); use it to continue an interrupted run"
    )
    parser.add_argument(
        "--seeds", type=lambda text: list(map(int, text.split(","))), help="compare these seeds only"
    )
    parser.add_argument("--sizes", default="2,3", help="numbers of workers (default: 2,3)")
    parser.add_argument(
        "--without", default="", help="skip scripts with these parts: their names, separated by /"
    )
    parser.add_argument("--only", default="", help="skip scripts without this part, such as 'a block'")
    parser.add_argument("--keep", type=absolute, help="keep scripts and files of all seeds in this folder")
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        help="seconds that one run of a script may take (default: 30); more on a busy machine",
    )
    parser.add_argument(
        "--every", type=int, default=50, help="scripts between lines of progress (default: 50)"
    )
    return parser.parse_args()


def _is_wanted(seed, options):
    """Return whether the first line of a script names the part that all need, and none of those to skip."""
    name = make_script(seed).split("\n", 1)[0]
    return options.only in name and not any(part in name for part in options.without.split("/") if part)


def _count(pool, seed, folder, sizes, counts, reasons, failed):
    try:
        found = compare(pool, seed, folder, sizes)
    except SerialRunFailed as error:
        print(error, flush=True)
        failed.append(seed)
        return
    for one in found:
        counts[one.found, one.size] += 1
        if one.found in (DIFFERENT, UNSTABLE):
            print(one, flush=True)
        if one.found == DIFFERENT:
            failed.append(seed)
        elif one.found != UNSTABLE:
            reasons.update({(one.found, _general(reason)) for reason in one.reasons})


def _general(reason):
    """Return a reason without the numbers, names and source lines that differ between scripts."""
    reason = re.sub(r" ?\(script\.py:\d+\)", "", reason)
    return re.sub(r"\b\d+\b", "#", re.sub(r"_\d+\b", "", reason)).strip()


def _totals(counts):
    sizes = sorted({size for _, size in counts})
    return "; ".join(
        f"{size} workers: " + ", ".join(f"{counts[name, size]} {name}" for name in CLASSES) for size in sizes
    )


def _report(counts, reasons, failed):
    print(_totals(counts))
    for (name, reason), count in reasons.most_common():
        print(f"{count:6} {name}: {reason}")
    if failed:
        print(f"seeds that differ: {','.join(map(str, dict.fromkeys(failed)))}")


if __name__ == "__main__":
    sys.exit(main())
