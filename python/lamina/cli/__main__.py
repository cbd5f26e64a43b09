"""`python -m lamina.cli`: the command `lamina` without its script."""

from __future__ import annotations

from lamina.cli.main import main

if __name__ == "__main__":
    main()
