"""A call that is computed for a comparison changes no file."""

import importlib
import io
import logging
import os
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from samestep.autopilot.equivalence import effects
from samestep.autopilot.equivalence.effects import (
    WritesFileError,
    changing_no_files,
    quiet,
    remove_temporary_folders,
    watch_effects,
    watched_logging,
    without_stdout,
)


@pytest.mark.parametrize("folder", [None, "/dev/shm"])
@pytest.mark.parametrize("opens", [lambda path: path.open("a"), lambda path: io.FileIO(path, "a")])
def test_a_comparison_that_changes_a_file_is_refused(folder, opens):
    watch_effects()
    with tempfile.TemporaryDirectory(dir=folder) as base:
        path = Path(base) / "log"
        with changing_no_files(), pytest.raises(WritesFileError):
            opens(path)
        assert not path.exists()
        opens(path).close()
        assert path.exists()


def test_a_comparison_may_read_files_and_write_to_devices():
    watch_effects()
    with changing_no_files():
        Path(os.devnull).write_text(Path(__file__).read_text())


def test_a_helper_imports_a_library_that_makes_a_temporary_folder_and_removes_it(tmp_path, monkeypatch):
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    makes = "import tempfile\nFOLDER = tempfile.mkdtemp()\n"  # as wandb does
    (libraries / "library_with_media.py").write_text(makes)
    (tmp_path / "script_with_media.py").write_text(makes)
    for folder in libraries, tmp_path:
        monkeypatch.syspath_prepend(folder)

    watch_effects(refuses_all=True)
    try:
        folder = Path(importlib.import_module("library_with_media").FOLDER)
        with pytest.raises(WritesFileError):
            importlib.import_module("script_with_media")
        assert folder.is_dir()
        remove_temporary_folders()
    finally:
        watch_effects()

    assert not folder.exists()


def test_a_helper_still_refuses_effects_after_it_has_removed_a_temporary_folder(tmp_path, monkeypatch):
    """Only this finds a helper that writes the files of a script from its first temporary folder on."""
    folder = tmp_path / "media"
    folder.mkdir()
    monkeypatch.setattr(effects, "_temporary_folders", [str(folder)])
    watch_effects(refuses_all=True)
    try:
        remove_temporary_folders()
        with pytest.raises(WritesFileError):
            (tmp_path / "log").open("a")
    finally:
        watch_effects()
    assert not folder.exists()


def test_a_message_that_a_library_logs_once_is_logged_by_the_scripts_call(monkeypatch, caplog):
    @lru_cache  # as transformers does
    def warning_once(logger, text):
        logger.warning(text)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    logger = logging.getLogger("library")

    with quiet() as checked:
        logger.warning_once("the loss is the default one")
    assert not caplog.messages
    for _ in range(2):
        with watched_logging(), without_stdout() as called:
            logger.warning_once("the loss is the default one")

    assert caplog.messages == ["the loss is the default one"]
    assert not checked.any
    assert not called.any


def test_a_warning_is_shown_by_the_scripts_calls_and_once():
    def forward():
        warnings.warn("a layer is frozen", stacklevel=1)
        torch.ones(2, 3, 4).T  # noqa: B018 - torch warns of it once in a process

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            with quiet():
                forward()
            forward()

    lines = [warning.lineno for warning in shown]
    assert len(lines) == len(set(lines)) == 2
