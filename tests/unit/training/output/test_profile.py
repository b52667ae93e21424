"""Which steps are traced is checked before work starts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.base.errors import Error, UsageError
from samestep.ranks.world.solo import SoloWorld
from samestep.training.output.profile import Profiler, steps_of


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_span_is_the_steps_from_a_to_before_b(first, count):
    assert steps_of(f"{first}:{first + count}") == range(first, first + count)


@pytest.mark.parametrize("span", ["", "5", "a:b", "1:", ":3", "1:2:3", "-1:3", "1.5:2", "1:3x"])
def test_what_is_no_span_is_refused_with_the_form(span):
    with pytest.raises(UsageError, match=r"--profile .* 10:15"):
        steps_of(span)


@pytest.mark.parametrize("span", ["0:3", "3:3", "5:2"])
def test_a_span_without_steps_is_refused(span):
    with pytest.raises(UsageError, match=r"--profile .* 10:15"):
        steps_of(span)


def test_steps_beyond_the_end_of_the_training_are_refused(tmp_path):
    Profiler("1:21", tmp_path, SoloWorld(), total=20)
    with pytest.raises(UsageError, match=r"--profile 1:22: .* 20 .* 21"):
        Profiler("1:22", tmp_path, SoloWorld(), total=20)


def test_off_is_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with Profiler(None, Path(), SoloWorld(), total=0) as profiler:
        for step in range(1, 5):
            profiler.step_done(step)

    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "profile").write_text("in the way")

    profiler = Profiler("1:2", tmp_path, SoloWorld(), total=3)
    with pytest.raises(Error, match=r"cannot write to .*: File exists.*--resume"), profiler:
        profiler.step_done(1)
