"""``samestep`` and ``python -m samestep`` are the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its imports, or after its end, ends it as others do."""
    try:
        from samestep.base.signals import ended_by_interrupt

        with ended_by_interrupt():
            from samestep.cli.main import main as run
        run()
    except KeyboardInterrupt:
        sys.stderr.write("samestep: interrupted.\n")
        sys.exit(130)  # INTERRUPTED, whose module can be the one whose import was interrupted


def leave_current_folder() -> None:
    """Let imports search the interpreter's folder, not the current one, as the command ``samestep`` does.

    ``python -m`` searches the current folder first, where a ``secrets.py`` hides the library's.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = sys.executable.rpartition("/")[0]


if __name__ == "__main__":
    leave_current_folder()
    main()
