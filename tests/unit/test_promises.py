"""docs/design/promises.md names tests that exist, for each promise."""

from __future__ import annotations

import re
from pathlib import Path

NAMED = re.compile(r"`([A-Za-z0-9_./-]+\.(?:py|scala))::([^`]+)`")


def missing(text: str, repository: Path) -> list[str]:
    """The tests named in `text` that are not in the file that is named with them."""
    found = []
    for path, name in NAMED.findall(text):
        file = repository / path
        definition = f'test("{name}")' if path.endswith(".scala") else f"def {name}("
        if not file.exists() or definition not in file.read_text(encoding="utf-8"):
            found.append(f"{path}::{name}")
    return found


def test_every_test_that_holds_a_promise_exists(repository: Path) -> None:
    text = (repository / "docs" / "design" / "promises.md").read_text(encoding="utf-8")
    assert missing(text, repository) == []


def test_each_of_the_ten_promises_is_held_by_a_test_or_says_that_it_is_not_kept_yet(repository: Path) -> None:
    text = (repository / "docs" / "design" / "promises.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (?=\d+\.)", text, flags=re.MULTILINE)[1:]
    assert [int(section.split(".")[0]) for section in sections] == list(range(1, 11))
    held = [number for number, section in enumerate(sections, 1) if "not kept yet" not in section.lower()]
    assert held == list(range(1, 10))
    assert all(NAMED.search(sections[number - 1]) for number in held)


def test_a_test_that_was_renamed_is_noticed(repository: Path) -> None:
    text = "`tests/unit/test_promises.py::test_of_another_name` and `tests/nowhere.py::test_x`"
    assert len(missing(text, repository)) == 2
