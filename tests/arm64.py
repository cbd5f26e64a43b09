"""Makes `build/arm64/bin/java`, Java on arm64 by emulation, with which `make test-arm64` runs the table's tests.

Debian's default JRE for arm64 and the libraries that it needs are fetched by apt into `build/arm64` and unpacked there;
nothing is installed, and nobody has to be root. `qemu-aarch64` has to be there. Ends with 3 where something is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "build" / "arm64"
MISSING = 3
_JAVA = """#!/bin/sh
root=$(dirname "$0")/../root
exec qemu-aarch64 -L "$root" "$root/usr/lib/jvm/default-java/bin/java" "$@"
"""
_NEEDED = {
    "qemu-aarch64": "apt-get install qemu-user",
    "apt-get": "the JRE comes from Debian's packages",
    "dpkg-deb": "the JRE comes from Debian's packages",
}


def main() -> int:
    """Makes it unless it is there, and prints what it is."""
    for tool, advice in _NEEDED.items():
        if shutil.which(tool) is None:
            print(f"Nothing ran on arm64: there is no {tool} here ({advice}).", file=sys.stderr)
            return MISSING
    java = TARGET / "bin" / "java"
    if not java.exists():
        shutil.rmtree(TARGET, ignore_errors=True)
        _unpack(_fetch(TARGET / "apt"), TARGET / "root")
        shutil.rmtree(TARGET / "apt")
        java.parent.mkdir()
        java.write_text(_JAVA)
        java.chmod(0o755)
    said = subprocess.run(
        [java, "-XshowSettings:properties", "-version"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout
    if "os.arch = aarch64" not in said:
        raise SystemExit(f"{java} is no Java on arm64:\n{said}")
    emulator = subprocess.run(["qemu-aarch64", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    print("\n".join([emulator.splitlines()[0], *said.splitlines()[-3:]]))
    return 0


def _fetch(state: Path) -> list[Path]:
    """The packages of the JRE; apt keeps what it knows of arm64 in `state`, beside the system's."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()  # of a system without any package
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::State": state / "state",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
    }
    apt = ["apt-get", "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "--yes", "--download-only", "install", "default-jre-headless"], check=True)
    return sorted((state / "cache" / "archives").glob("*.deb"))


def _unpack(packages: list[Path], root: Path) -> None:
    for package in packages:
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    # links to places of the system would lead into this machine's own
    for link in (path for path in root.rglob("*") if path.is_symlink()):
        target = link.readlink()
        if target.is_absolute() and (root / target.relative_to("/")).exists():
            link.unlink()
            link.symlink_to(os.path.relpath(root / target.relative_to("/"), link.parent))


if __name__ == "__main__":
    sys.exit(main())
