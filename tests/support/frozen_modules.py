"""Freezes the imported objects, which the garbage collector then skips, here and in forked processes.

It is the last of the modules that the fork server imports. Otherwise each process that it forks would visit
400,000 objects in a full collection, 0.2 s, and copy the pages that hold them.
"""

import gc

gc.collect()
gc.freeze()
