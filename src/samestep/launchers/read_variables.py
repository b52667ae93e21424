"""Reads the variables of one launcher, checks them, and completes them to a Place."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from samestep.base.env import Environment, integer
from samestep.base.errors import DetectionError
from samestep.base.place import Place
from samestep.launchers.hostlist import tasks_per_node
from samestep.launchers.registry import Launcher

FIELDS = ("rank", "size", "local_rank", "local_size", "node", "nodes")
_PAIRS = (("rank", "size"), ("local_rank", "local_size"), ("node", "nodes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Variables of one launcher, as read."""

    launcher: Launcher
    values: Mapping[str, int]  # the fields of a Place that the variables give, by name
    named: Mapping[str, str]  # the variable each field was read from
    layout: tuple[int, ...]  # ranks on each node; empty if the launcher does not give it
    evidence: tuple[tuple[str, str], ...]  # all variables that were set, with their values

    def shown(self) -> str:
        """Return the evidence on one line, for messages."""
        return " ".join(f"{name}={value}" for name, value in self.evidence)


def claim_of(launcher: Launcher, env: Environment) -> Claim:
    """Return the variables of `launcher` in `env`.

    Raises:
        DetectionError: a variable has a malformed value.
    """
    values: dict[str, int] = {}
    named: dict[str, str] = {}
    for field in FIELDS:
        for name in getattr(launcher, field):
            value = integer(env, name)
            if value is not None:
                values[field], named[field] = value, name
                break
    layout = env.get(launcher.layout, "")
    proof = next((group for group in launcher.proof if all(env.get(name) for name in group)), ())
    others = [name for name in (launcher.layout, launcher.hosts, *launcher.job, *proof) if env.get(name)]
    names = dict.fromkeys([*named.values(), *others])
    return Claim(
        launcher=launcher,
        values=values,
        named=named,
        layout=tuple(tasks_per_node(layout)) if layout else (),
        evidence=tuple((name, env[name]) for name in names),
    )


def place_of(claim: Claim, *, one_host: bool) -> tuple[Place, tuple[str, ...]]:
    """Return the place that a claim gives, and those of its fields that were inferred.

    With `one_host`, the rendezvous is on loopback, so that all ranks are on this host.

    Raises:
        DetectionError: the claim contradicts itself, or lacks a value that cannot be inferred.
    """
    for field in ("rank", "size"):
        if field not in claim.values:
            raise _half_set(claim, field)
    _check_pairs(claim, claim.values)
    given = {**claim.values, **_from_layout(claim)}
    full = dict(given)
    full["local_rank"], full["local_size"] = _locals(claim, given, one_host=one_host)
    size, local_size = full["size"], full["local_size"]
    full.setdefault("nodes", ceil(size / local_size))
    # Launchers fill node after node by default; join() corrects this from the host names.
    full.setdefault("node", min(full["rank"] // local_size, full["nodes"] - 1))
    _check_pairs(claim, full)
    if (full["nodes"] == 1) != (local_size == size) or local_size > size or full["nodes"] > size:
        raise _contradiction(
            claim, f"{size} ranks cannot be {local_size} on this node and spread over {full['nodes']} node(s)"
        )
    assumed = tuple(field for field in FIELDS if field not in given and size > 1)
    if local_size == size:
        assumed = tuple(field for field in assumed if field not in {"node", "nodes"})  # one node: no guess
    return Place(**full, launcher=claim.launcher.name), assumed


def _check_pairs(claim: Claim, values: Mapping[str, int]) -> None:
    for index, count in _PAIRS:
        if index in values and count in values and not 0 <= values[index] < values[count]:
            left, right = (f"{claim.named.get(field, field)}={values[field]}" for field in (index, count))
            raise _contradiction(claim, f"{left} does not go with {right} (counted from 0)")


def _from_layout(claim: Claim) -> dict[str, int]:
    """Return the fields that the list of ranks per node gives, after checking it against the others."""
    if not claim.layout:
        return {}
    values, counts = claim.values, claim.layout
    name = claim.launcher.layout
    if sum(counts) != values["size"]:
        raise _contradiction(
            claim, f"{name} adds up to {sum(counts)} ranks, but {claim.named['size']}={values['size']}"
        )
    if values.get("nodes", len(counts)) != len(counts):
        raise _contradiction(
            claim, f"{name} lists {len(counts)} node(s), but {claim.named['nodes']}={values['nodes']}"
        )
    node = values.get("node", 0 if len(counts) == 1 else len(counts))
    if node >= len(counts):
        raise _contradiction(claim, f"{name} lists {len(counts)} node(s), which one is this one?")
    local_size = counts[node]
    if values.get("local_rank", 0) >= local_size:
        raise _contradiction(
            claim,
            f"{claim.named['local_rank']}={values['local_rank']}, but {name} puts {local_size} "
            f"rank(s) on node {node}",
        )
    return {"nodes": len(counts), "node": node, "local_size": local_size}


def _locals(claim: Claim, given: Mapping[str, int], *, one_host: bool) -> tuple[int, int]:
    """Return local rank and local size, given or inferred."""
    rank, size = given["rank"], given["size"]
    local_rank, local_size = given.get("local_rank"), given.get("local_size")
    if local_rank is not None and local_size is not None:
        return local_rank, local_size
    if size == 1 or given.get("nodes") == 1 or one_host:
        return (rank if local_rank is None else local_rank, local_size or size)
    if claim.launcher.silent_means_alone and local_rank is None and local_size is None:
        return 0, 1
    raise _half_set(claim, "local_rank" if local_rank is None else "local_size")


def _half_set(claim: Claim, field: str) -> DetectionError:
    missing = " or ".join(getattr(claim.launcher, field)) or claim.launcher.layout or field
    return DetectionError(
        f"{missing} is not set, but {claim.shown()} is (launcher: {claim.launcher.name}). Set it on every "
        "rank, or unset the others to run as a single process."
    )


def _contradiction(claim: Claim, what: str) -> DetectionError:
    return DetectionError(
        f"{what}; found {claim.shown()} (launcher: {claim.launcher.name}). Correct the values, or "
        "unset them and start the ranks with samestep run, torchrun, srun or mpirun."
    )
