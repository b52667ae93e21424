"""Training scripts of the exercises, on 1 to 5 ranks: solutions pass, and wrong ones are named by code."""

import pytest

from gallery_exercises.manifest import SCRIPTS
from samestep_lab.exercises.grading import grade_file
from samestep_lab.exercises.starters import EXERCISES, serial, serial_path, solution
from support.tiers import long_param, mostly_long


@pytest.fixture
def graded(verifier, tmp_path):
    def graded(exercise, text, ranks):
        script = tmp_path / "mine.py"
        script.write_text(text)
        serial_path(script).write_text(serial(solution(exercise)))

        def verify(script, against, ranks):
            return verifier.verify(
                script, against=against, workers=ranks, steps=None, hang_s=20.0, as_json=False
            )

        (result,) = grade_file(script, ranks, verify=verify)
        return result

    return graded


@pytest.mark.parametrize("name", [name for name, one in EXERCISES.items() if not one.function])
@pytest.mark.parametrize("ranks", [[1, 3], long_param([1, 2, 4, 5])], ids=str)
def test_a_solution_passes(graded, name, ranks):
    result = graded(name, solution(name), ranks)

    assert (result.faults, result.remarks) == ([], [])


MORE_RANKS = [
    ("gradients_summed", 4),
    ("padded_evaluation", 5),
    ("evaluation_of_one_rank", 3),
    ("batch_of_each_rank", 5),  # a step uses the whole data set
]


CASES = [*((name, 2) for name in SCRIPTS), *MORE_RANKS]
SHORT = (
    *("gradients_summed 2", "evaluation_on_rank_0 2", "saved_on_all_ranks 2", "wrapper_not_called 2"),
    "batch_of_each_rank 2",
)


@pytest.mark.parametrize("case", mostly_long(CASES, SHORT, lambda case: f"{case[0]} {case[1]}"))
def test_a_wrong_script_is_named(graded, case):
    name, ranks = case
    exercise, right, wrong, *codes = SCRIPTS[name]
    text = solution(exercise)
    assert text.count(right) == 1
    result = graded(exercise, text.replace(right, wrong), [ranks])

    assert [fault.code for fault in result.faults] == codes
    assert {fault.ranks for fault in result.faults} == {ranks}
    assert not any("samestep." in fault.text for fault in result.faults)  # the exercises are plain PyTorch
