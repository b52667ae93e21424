"""Signals by which schedulers say that a machine will be taken away."""

import signal

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""What is sent some time before a job's limit, by default or as sites say; launchers hand them on."""
