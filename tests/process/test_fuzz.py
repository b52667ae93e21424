"""Every reader refuses wrong content by one line and exit code 2, or reads it right. More: make fuzz."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.fuzz import Fuzzed
from support.fuzz_readers import READERS
from support.tiers import long_param

SECONDS = 20.0
"""Of a case here, where other tests keep the processors busy; by hand 5."""

NUMBERS = st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
VARIABLES = st.dictionaries(
    st.sampled_from(
        [
            "LOCAL_RANK",
            "MASTER_PORT",
            "OMPI_COMM_WORLD_RANK",
            "PMIX_RANK",
            "PMI_RANK",
            "RANK",
            "SLURM_PROCID",
            "SLURM_STEP_ID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_TASKS_PER_NODE",
            "WORLD_SIZE",
        ]
    ),
    st.text(alphabet="0123456789-+_()x[],\u0663 \x1b", max_size=12) | st.integers().map(str),
)
HOSTS = st.text(alphabet="ab019-,[]()x ", max_size=40)


@pytest.fixture(scope="module")
def fuzzed():
    with Fuzzed(seconds=SECONDS) as fuzzed:
        yield fuzzed


@pytest.mark.parametrize("count", [3, long_param(25)])
@pytest.mark.parametrize("name", READERS)
def test_wrong_content_is_one_line_or_read_right(fuzzed, name, count):
    answers = [fuzzed.case(name, seed=0, number=number) for number in range(count)]

    assert {number: one for number, one in enumerate(answers) if not one.is_right} == {}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=JSON)
@pytest.mark.parametrize("name", ["study", "jobs", "run-result", "clocked"])
def test_any_json_is_one_line_or_read_right(fuzzed, name, content):
    answer = fuzzed.read(name, json.dumps(content).encode())

    assert answer.is_right, answer


@settings(max_examples=150)
@given(variables=VARIABLES)
def test_any_variables_are_one_line_or_read_right(fuzzed, variables):
    answer = fuzzed.read("environment", json.dumps(variables).encode())

    assert answer.is_right, answer


@settings(max_examples=150)
@given(text=HOSTS)
def test_any_list_of_hosts_is_one_line_or_read_right(fuzzed, text):
    answer = fuzzed.read("hostlist", text.encode())

    assert answer.is_right, answer


@settings(max_examples=40)
@given(text=st.text(alphabet="ab[]{}=.,\"'\n 01-#", max_size=60))
@pytest.mark.parametrize("name", ["toml", "recipe-toml", "csv"])
def test_any_text_is_one_line_or_read_right(fuzzed, name, text):
    answer = fuzzed.read(name, text.encode())

    assert answer.is_right, answer


@pytest.mark.parametrize("fault", ["hangs", "takes memory", "raises"])
def test_a_fault_is_found_and_the_next_case_is_read(fault):
    with Fuzzed(seconds=1.0) as fuzzed:
        assert not fuzzed.read("faulty", fault.encode()).is_right
        assert fuzzed.read("hostlist", b"a[0-1]").kind in ("read", "slow")
