"""Python runs this at its start: torch is loaded with the device that the environment names."""

import importlib.abc
import importlib.machinery
import os
import sys


class _Loading(importlib.abc.MetaPathFinder):
    """Finds the modules that the device changes, and changes them after they were loaded."""

    def find_spec(self, name, path=None, target=None):
        """Return where the module is, with a loader that changes it; None for others."""
        if name not in ("torch", "samestep.ranks.world.device", "samestep.base.machine.accelerators"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                import host_cuda_modules

                with host_cuda_modules.changing(name, spec):
                    load(module)

            spec.loader.exec_module = exec_module
        return spec


if os.environ.get("SAMESTEP_TESTS_HOST_CUDA"):
    sys.meta_path.insert(0, _Loading())
