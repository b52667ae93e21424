"""Whether this process may be forked into workers that compute with torch."""

import sys
import threading


def fork_is_safe() -> bool:
    """Return whether forked children can use torch, devices included.

    Not on macOS, whose system libraries do not survive a fork; not with an open device context, which
    a child can neither use nor close; and not beside other threads, whose locks nobody would open again.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    backends = (getattr(torch, name, None) for name in ("cuda", "xpu"))
    return not any(backend is not None and backend.is_initialized() for backend in backends)
