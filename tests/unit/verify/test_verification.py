"""The properties of a script's source for which a verification has a further run."""

import ast

import pytest

from samestep.launch.job import Program
from samestep.verify.causes import causes
from samestep.verify.run_record import RunRecord
from samestep.verify.trace import Facts, Step, Trace
from samestep.verify.verdict import Finding
from samestep.verify.verification import (
    Script,
    Verification,
    _makes_generators,
    _uses_hashes,
    ends_loops_by_clock,
)

SOURCES = {
    "import torch\ng = torch.Generator()": (True, False),
    "from numpy.random import default_rng\ng = default_rng(0)": (True, False),
    "names = list({'a', 'b'})": (False, True),
    "names = {n for n in 'ab'}": (False, True),
    "names = frozenset('ab')": (False, True),
    "part = hash('a') % 2": (False, True),
    "table = {'a': 1}\nseen = []\nmodel.set(1)": (False, False),
}


@pytest.mark.parametrize("text", SOURCES)
def test_generators_and_sets_are_found_in_a_script_and_in_its_modules(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    program = Program(target=str(path))
    assert (_makes_generators(program), _uses_hashes(program)) == SOURCES[text]

    (tmp_path / "parts.py").write_text(text)
    path.write_text("import parts")
    assert (_makes_generators(program), _uses_hashes(program)) == SOURCES[text]


def ended_after(steps, *, workers=1):
    """Return the record of a serial script that ended after some steps, and has printed their number."""
    facts = Facts(rank=0, epsilon=1e-7, ended="end", printed=f"{steps} steps\n")
    made = [Step(index=index, samples=[1.0], losses=[0.5 + index]) for index in range(steps)]
    return RunRecord([Trace(facts, made, steps)], runs_once=workers > 1, workers=workers)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("time.time() - start < 3", ([], 4, True)), ("loss > 0.1", (["number-of-steps"], 4, False))],
)
@pytest.mark.parametrize("steps", [4, 6])
def test_a_time_budget_of_a_serial_script_is_no_fault(tmp_path, condition, expected, steps):
    """Only this finds an accusation of a script that has made fewer or more steps in its time."""
    path = tmp_path / "train.py"
    path.write_text(f"import time\nstart = time.time()\nwhile {condition}:\n    step()\n")
    script = Script(program=Program(target=str(path)), kind="serial")
    verification = Verification(
        script=script,
        against=None,
        workers=[2],
        steps=9,
        runs=None,
    )
    of_one_worker = [ended_after(10 - steps) for _ in range(2)]
    comparison = verification._compared(of_one_worker[0], ended_after(steps, workers=2), of_one_worker[1])
    found = [finding.cause for finding in causes(comparison)]
    assert (found, comparison.steps, "later-steps" in verification._missing) == expected


BEGIN = "import time\nstart = time.time()\n"
ENDED = [
    "while time.time() - start < 3:\n    step()",
    "budget = start + 3\nwhile running and time.perf_counter() < budget:\n    step()",
    "for x in data:\n    elapsed = time.monotonic_ns() - start\n    if elapsed > 3:\n        break",
    "for x in data:\n    if (datetime.now() - begin).total_seconds() > 3:\n        raise End",
    "def left():\n    return 3 - (time.time() - start)\nwhile left() > 0:\n    step()",
    "class T:\n    def over(self):\n        return time.time() > self.end\nwhile not T.over():\n    step()",
    "if max(time.time() - start, 0.0) < 3:\n    pass\nelse:\n    raise SystemExit",
]
NOT_ENDED = [
    "for x in data:\n    step()\n    print(time.time() - start)",
    "for x in data:\n    if time.time() - saved > 60:\n        save()\n        saved = time.time()",
    "log = {'seconds': time.time() - start, 'loss': loss}\nif log['loss'] < best:\n    raise SystemExit",
    "while step(seconds=time.time() - start) > best:\n    pass",
]


@pytest.mark.parametrize("text", ENDED)
def test_a_loop_that_the_clock_ends_is_found(text):
    assert ends_loops_by_clock([ast.parse(BEGIN + text)])


@pytest.mark.parametrize("text", NOT_ENDED)
def test_a_clock_that_ends_nothing_is_no_reason_for_other_numbers_of_steps(text):
    assert not ends_loops_by_clock([ast.parse(BEGIN + text)])


def test_a_fault_names_the_exceptions_that_failed_runs_leave_open(tmp_path, monkeypatch):
    """Without batch norm of each rank, ranks in other modes wait for each other."""
    script = Script(program=Program(target=str(tmp_path / "train.py")), kind="native")
    verification = Verification(script=script, against=None, workers=[2], steps=4, runs=None)
    monkeypatch.setattr(Verification, "_repeated", lambda *_, **__: None)
    fault = Finding(cause="loss", message="the loss deviates.", workers=2)
    exception = Finding(cause="batch-norm-local", message="of shares", workers=2, kind="exception")
    (found,), proven = verification._without([exception], 2, [fault])
    assert proven == []
    assert found.kind == "fault"
    assert exception.message in found.message
