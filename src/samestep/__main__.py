"""``python -m samestep`` is the command line."""

from samestep.cli.main import main

main()
