"""Answers of the benchmarks' questions, as a result on disk has them."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import machine
from benchmarks.bars import Figures
from benchmarks.questions import Question


def answer(question: Question, figures: Figures, **changed: Any) -> dict[str, Any]:
    """One of today's code, as it is read back, but for what `changed` says."""
    told = {
        "date": "2026-01-02", "commit": "0123456789", "code": machine.code(), "rounds": 1, "files": "ext4",
        "machine": machine.describe(), "parameters": question.full, "figures": figures,
    }  # fmt: skip
    read: dict[str, Any] = json.loads(json.dumps({**told, **changed}))
    return read
