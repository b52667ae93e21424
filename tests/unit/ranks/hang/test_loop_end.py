"""The lines of two ranks show whether one has left the training loop of the other."""

import pytest

from samestep.ranks.hang.script_position import has_left_loop, is_in_step, is_in_training_loop

SCRIPT = """\
def train(model, loader):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        for p in model.parameters():
            all_reduce(p.grad)
        optimizer.step()
        barrier()
        if rank == 0:
            barrier()
    gather(loss)

def main():
    for epoch in range(4):
        train(model, loader)
        evaluate(model)
        if dist.get_rank() == 0:
            barrier()
    all_reduce(score)

def evaluate(model):
    for batch in loader:
        all_reduce(model(batch))
"""
IN_STEP, OTHER_IN_STEP, ON_RANK_0, BEHIND, IN_EVALUATION, AFTER_EPOCH, AT_END = 6, 8, 10, 11, 23, 18, 19
FORWARD = 3


@pytest.fixture
def at(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return lambda line: f"{file}:{line}: text"


@pytest.mark.parametrize("line", [BEHIND, AT_END, IN_EVALUATION])
def test_a_line_behind_the_loop_or_its_function_has_left_the_loop(at, line):
    assert has_left_loop(at(line), at(IN_STEP))


@pytest.mark.parametrize("line", [IN_STEP, OTHER_IN_STEP, ON_RANK_0, AFTER_EPOCH])
def test_a_line_in_the_loop_or_of_some_ranks_only_has_not_left_the_loop(at, line):
    assert not has_left_loop(at(line), at(IN_STEP))


def test_only_loops_with_optimizer_steps_are_training_loops(at):
    assert is_in_training_loop(at(IN_STEP))
    assert not is_in_training_loop(at(IN_EVALUATION))
    assert not has_left_loop(at(AT_END), at(IN_EVALUATION))


def test_lines_without_a_readable_script_have_not_left_the_loop(at, tmp_path):
    gone = f"{tmp_path / 'gone.py'}:3: text"
    assert not has_left_loop(gone, gone)
    assert not has_left_loop(at(BEHIND), gone)
    assert not is_in_training_loop("outside of the script")


@pytest.mark.parametrize(
    "behind",
    [
        "if gpu == 0:\n        barrier()",
        "if master:\n        barrier()",
        "if gpu:\n        return\n    barrier()",
    ],
)
def test_a_conditional_line_behind_the_loop_has_not_left_the_loop(tmp_path, behind):
    loop = "    for batch in loader:\n        if done: break\n        optimizer.step()\n"
    file = tmp_path / "train.py"
    file.write_text(f"def train():\n{loop}    {behind}\n")
    last = len(file.read_text().splitlines())

    assert not has_left_loop(f"{file}:{last}: barrier()", f"{file}:4: step")
    file.write_text(f"def train():\n{loop}    barrier()\n")
    other = tmp_path / "other.py"
    other.write_text(file.read_text())
    assert has_left_loop(f"{other}:5: barrier()", f"{other}:4: step")


def test_a_step_is_inside_the_loop_with_the_optimizer_step_and_not_between_its_runs(at, tmp_path):
    file = tmp_path / "flat.py"
    file.write_text(
        "for epoch in range(4):\n    for batch in loader:\n        model(batch)\n        optimizer.step()\n"
        "    model(data)\n"
    )

    assert is_in_step(at(FORWARD))
    assert is_in_step(f"{file}:3")
    assert not is_in_step(f"{file}:5")
    assert not is_in_step(at(IN_EVALUATION))
