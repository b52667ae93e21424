"""Runs a script whose process group has another timeout than torch's 30 minutes.

torchrun ... with_timeout.py SECONDS SCRIPT
"""

import runpy
import sys
from datetime import timedelta
from functools import partial

import torch.distributed as dist

seconds, script = float(sys.argv[1]), sys.argv[2]
dist.init_process_group = partial(dist.init_process_group, timeout=timedelta(seconds=seconds))
sys.argv = [script]
runpy.run_path(script, run_name="__main__")
