"""`tests.arm64`: a machine that cannot run arm64 says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import arm64


@pytest.mark.parametrize("lacking", ["qemu-aarch64", "apt-get", "dpkg-deb"])
def test_a_machine_without_one_of_the_tools_is_told_which(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in {"qemu-aarch64", "apt-get", "dpkg-deb"} - {lacking}:
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert arm64.main() == arm64.MISSING
    assert f"Nothing ran on arm64: there is no {lacking} here" in capsys.readouterr().err
