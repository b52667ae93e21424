"""Folders that are named by the time belong to one command only."""

from samestep.base.folders import claim_folder


def test_each_command_claims_a_folder_of_its_own(tmp_path):
    first = tmp_path / "runs" / "digits"

    claimed = [claim_folder(first) for _ in range(3)]

    assert [path.name for path in claimed] == ["digits", "digits-2", "digits-3"]
    assert all(path.is_dir() for path in claimed)


def test_a_folder_that_cannot_be_made_is_left_to_what_writes_there(tmp_path):
    (tmp_path / "runs").touch()
    assert claim_folder(tmp_path / "runs" / "digits") == tmp_path / "runs" / "digits"
