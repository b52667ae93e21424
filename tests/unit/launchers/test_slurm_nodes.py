"""A host name that does not resolve gets the address that Slurm uses."""

import pytest

from samestep.base.errors import DetectionError
from samestep.ranks.rendezvous.endpoint import address_of, resolve

NODE = "node-that-no-resolver-knows.invalid"


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Return a function that installs an ``scontrol`` that prints a text."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def prints(text):
        command = tmp_path / "scontrol"
        command.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        command.chmod(0o755)

    return prints


def test_an_unknown_name_gets_the_address_of_slurm(scontrol):
    scontrol(f"NodeName={NODE} Arch=x86_64\n   NodeAddr=10.1.2.3 NodeHostName={NODE} Version=23.02\n")

    assert resolve(NODE) == "10.1.2.3"


def test_slurm_is_not_called_for_a_name_that_resolves(scontrol):
    scontrol("NodeAddr=10.1.2.3\n")

    assert resolve("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("text", [None, "", "Node not found\n", f"NodeAddr={NODE} \n"])
def test_an_unknown_name_is_an_error_without_an_address_of_slurm(scontrol, text):
    if text is not None:
        scontrol(text)

    assert address_of(NODE) is None
    with pytest.raises(DetectionError, match="MASTER_ADDR"):
        resolve(NODE)
