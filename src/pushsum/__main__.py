"""The command `pushsum`, which is also `python -m pushsum`."""

import os
import sys


def main() -> None:
    """Run the command line; an interrupt is one line, also while everything is being imported."""
    try:
        from pushsum.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("pushsum: interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # Python itself may end by the signal instead, if it came within exec()


if __name__ == "__main__":
    main()
