"""The command `lamina`, and `python -m lamina.cli`: Ctrl-C ends it quietly from its first import on."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Runs the command line and exits."""
    try:
        # takes half a second: Arrow, and what draws tables
        from lamina.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
