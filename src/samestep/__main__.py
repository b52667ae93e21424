"""``samestep`` and ``python -m samestep`` are the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its imports ends it as later ones do."""
    try:
        from samestep.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # INTERRUPTED, whose module can be the one whose import was interrupted
    run()


if __name__ == "__main__":
    main()
