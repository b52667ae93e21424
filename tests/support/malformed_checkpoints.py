"""Checkpoints with odd contents that a reader must refuse in one line, sealed so that no checksum shows it.

By hand, with as many cases as wanted: ``python -m support.malformed_checkpoints 5000``.
"""

import hashlib
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from samestep.base.errors import Error
from samestep.training.checkpoint.random_state import random_state
from samestep.training.checkpoint.read import read
from samestep.training.checkpoint.snapshot import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    Seal,
    manifest_text,
    read_manifest,
)
from support.snapshots import network, snapshot, stepped, write

ODD = (
    *(None, True, -1, 0, 2**63, 10**40, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "3", "a" * 5000, "\ud800"),
)
LIMIT_S = 5.0


def odd(draw: random.Random, depth: int = 2) -> object:
    """Return a value that is invalid in most places."""
    if depth and draw.random() < 0.3:
        inner = [odd(draw, depth - 1) for _ in range(draw.randrange(3))]
        return inner if draw.random() < 0.5 else {str(value)[:20]: value for value in inner}
    return draw.choice(ODD)


def odd_tree(draw: random.Random, tree: object) -> object:
    """Return a tree with one of its values replaced by an odd one."""
    if isinstance(tree, dict) and tree and draw.random() < 0.9:
        key = draw.choice(list(tree))
        return {**tree, key: odd_tree(draw, tree[key])}
    if isinstance(tree, list) and tree and draw.random() < 0.9:
        at = draw.randrange(len(tree))
        return [*tree[:at], odd_tree(draw, tree[at]), *tree[at + 1 :]]
    if draw.random() < 0.2:
        return torch.zeros(draw.randrange(3), dtype=draw.choice([torch.int64, torch.float32, torch.bool]))
    return odd(draw)


def mutated(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with a few changes: flips, cuts, repeats, and numbers in their place."""
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(changed) + 1)
        changed[at : at + draw.choice([0, 1, 1, 8])] = draw.choice(
            [b"", bytes([draw.randrange(256)]), b"\xff" * 8, b"9" * 50, b"[" * 20_000, changed[:40]]
        )
    return bytes(changed)


def reseal(folder: Path, name: str, data: bytes) -> None:
    """Write a file of a checkpoint, and seal it as what was saved."""
    seals = {**read_manifest(folder), name: Seal(len(data), hashlib.sha256(data).hexdigest())}
    (folder / name).write_bytes(data)
    (folder / MANIFEST).write_text(manifest_text(seals))


def make_odd(folder: Path, draw: random.Random) -> str:
    """Change a whole checkpoint in one way; return which."""
    kind = draw.choice(["bytes", "manifest", "state", "optimizer"])
    if kind == "bytes":
        name = draw.choice([MODEL, OPTIMIZER, STATE])
        reseal(folder, name, mutated(draw, (folder / name).read_bytes()))
    elif kind == "manifest":
        listed = odd_tree(draw, json.loads((folder / MANIFEST).read_text())["files"])
        text = json.dumps(listed, default=str)
        seal = hashlib.sha256(json.dumps([1, listed], default=str).encode()).hexdigest()
        version = draw.choice([1, True, 1.0, 10**99, None])
        whole = {"format": version, "files": json.loads(text), "sha256": seal}
        (folder / MANIFEST).write_text(json.dumps(whole, indent=2) + "\n")
    elif kind == "state":
        state = odd_tree(draw, json.loads((folder / STATE).read_text()))
        reseal(folder, STATE, json.dumps(state, default=str).encode())
    else:
        value = odd_tree(draw, torch.load(folder / OPTIMIZER, weights_only=True))
        stream = io.BytesIO()
        torch.save(value, stream)
        reseal(folder, OPTIMIZER, stream.getvalue())
    return kind


def try_one(whole: Path, folder: Path, seed: int) -> bool:
    """Read a checkpoint that was made odd, as a script does; return whether it was refused.

    Raises:
        AssertionError: it took too long, or the message is longer than a line.
        Exception: anything but an error of samestep.
    """
    import samestep
    from samestep.ranks.world.protocol import SoloWorld

    shutil.copytree(whole, folder)
    kind = make_odd(folder, random.Random(seed))
    model = network()
    optimizer = stepped(model)
    before = time.monotonic()
    try:
        read(folder)
        samestep.load(folder, model=model, optimizer=optimizer, world=SoloWorld())
    except Error as error:
        told = str(error)
    else:
        told = ""
    finally:
        shutil.rmtree(folder)
        assert time.monotonic() - before < LIMIT_S, (seed, kind)
    assert "\n" not in told, (seed, kind, told)
    return bool(told)


def whole_checkpoint(place: Path) -> Path:
    """Write a checkpoint with something in every part."""
    plain = snapshot()
    random_states = [random_state(torch.device("cpu"))]
    return write(snapshot(optimizer={**plain.optimizer, "random": random_states}), place / "step-3")


def main(count: int, start: int = 0) -> None:
    """Try many cases; print how many were refused."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        whole = whole_checkpoint(Path(place))
        refused = 0
        for seed in range(start, start + count):
            try:
                refused += try_one(whole, Path(place) / "odd", seed)
            except BaseException as error:  # noqa: PERF203 - each is told
                print(f"seed {seed}: {type(error).__name__}: {error}"[:300], flush=True)
                if isinstance(error, KeyboardInterrupt):
                    raise
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{count} cases, {refused} refused, at most {peak} MiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
