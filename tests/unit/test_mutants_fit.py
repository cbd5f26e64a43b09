"""The mutants of the shim fit the shim as it is: what they replace is there, and the rules that find them are known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.nightly.shim_mutants import MODEL, MUTANTS, SHIM, TESTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_mutant_is_in_its_file_once(mutant: Mutant, repository: Path) -> None:
    text = (repository / SHIM / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(text) != text


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_names_rules_of_the_model_or_tests_of_its_suite(mutant: Mutant, repository: Path) -> None:
    file, definition = ("model/Rules.scala", r'val \w+ = "([^"]+)"')
    if mutant.suite != MODEL:
        # the name of a test that is made several times has the case in it
        file, definition = (mutant.suite, r'test\(s?"([^"]+)"\)')
    known = re.findall(definition, (repository / TESTS / file).read_text(encoding="utf-8"))
    assert mutant.rules
    for rule in mutant.rules:
        assert any(re.fullmatch(re.sub(r"\\\$\w+", ".+", re.escape(name)), rule) for name in known), rule
