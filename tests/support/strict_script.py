"""Runs a script on the strict device: ``python strict_script.py SCRIPT [ARGUMENTS]``."""

import runpy
import sys

from support.strict_device import StrictDevice

if __name__ == "__main__":
    device, sys.argv = StrictDevice(), sys.argv[1:]
    with device():
        runpy.run_path(sys.argv[0], run_name="__main__")
    if device.lost:
        sys.exit(f"the device was lost by {device.lost}")
