"""The help of a flag that is made from a setting names every choice."""

import inspect
import re
from dataclasses import fields
from typing import get_args

import pytest

from samestep.cli.train import train
from samestep.training.settings import RunOptions, Settings


@pytest.mark.parametrize("kind", [Settings, RunOptions])
def test_help_names_every_choice_of_a_setting(kind):
    flags = inspect.signature(train).parameters
    for one in fields(kind):
        _, option = get_args(flags[one.name].annotation)
        assert set(one.metadata["choices"]) <= set(re.findall(r"[\w-]+", f"{option.metavar} {option.help}"))
