"""The steps to trace are checked before work starts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import Error, UsageError
from samestep.ranks.world.protocol import SoloWorld
from samestep.training.output.profile import Profiler, steps_of


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_range_of_steps_excludes_its_end(first, count):
    assert steps_of(f"{first}:{first + count}") == range(first, first + count)


@pytest.mark.parametrize("text", ["", "5", "a:b", "1:", ":3", "1:2:3", "-1:3", "1.5:2", "1:3x"])
def test_an_invalid_range_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"--profile .* 10:15"):
        steps_of(text)


@pytest.mark.parametrize("text", ["0:3", "3:3", "5:2"])
def test_an_empty_range_and_step_0_are_refused(text):
    with pytest.raises(UsageError, match=r"--profile .* 10:15"):
        steps_of(text)


def test_steps_beyond_the_end_of_the_training_are_refused(tmp_path):
    Profiler("1:21", tmp_path, SoloWorld(), total=20)
    with pytest.raises(UsageError, match=r"--profile 1:22: .* 20 .* 21"):
        Profiler("1:22", tmp_path, SoloWorld(), total=20)


def test_without_the_option_nothing_is_traced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with Profiler(None, Path(), SoloWorld(), total=0) as profiler:
        for step in range(1, 5):
            profiler.step_done(step)

    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_cannot_be_written_is_reported_with_advice(tmp_path):
    (tmp_path / "profile").write_text("in the way")

    profiler = Profiler("1:2", tmp_path, SoloWorld(), total=3)
    with pytest.raises(Error, match=r"cannot write to .*: File exists.*--resume"), profiler:
        profiler.step_done(1)
