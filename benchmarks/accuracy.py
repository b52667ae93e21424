"""Does each precision, memory format and compiling train to the accuracy of plain fp32, within noise?

    python benchmarks/accuracy.py digits
    python benchmarks/accuracy.py mnist --fast --data-dir DIR --subset 10000 [--seeds 3]

Each is a ``samestep train`` of its own, one seed after the other. Prints the accuracy on the whole test set:
the mean over seeds, the lowest and the highest. Nothing is timed.
"""

import argparse
import json
import statistics
import subprocess
import sys

VARIANTS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("--precision", "bf16"),
    "fp16": ("--precision", "fp16"),
    "bf16-true": ("--precision", "bf16-true"),
    "channels-last": ("--channels-last",),
    "compiled": ("--compile",),
}


def accuracy(arguments: list[str], seed: int, flags: tuple[str, ...]) -> float:
    """Train once; return the part of the test set that was right."""
    plain = ("--precision", "fp32") if "--precision" not in flags else ()
    command = [sys.executable, "-m", "samestep", "train", *arguments, *plain, *flags]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--json"], stdout=subprocess.PIPE, check=True, text=True
    )
    return float(json.loads(done.stdout)["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    options, arguments = parser.parse_known_args()
    for name in options.only:
        found = [accuracy(arguments, seed, VARIANTS[name]) for seed in range(options.seeds)]
        middle = statistics.mean(found)
        print(f"{name:14} {middle:8.2%}   {min(found):.2%} .. {max(found):.2%}", flush=True)


if __name__ == "__main__":
    main()
