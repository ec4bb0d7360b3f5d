"""Regenerates the code in `ps_wire/v1` from `proto/ps_wire/v1/*.proto`, or checks that it is what the compiler writes.

Run it with the compiler that `proto/requirements.txt` pins: `make proto` and `make protos` do.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).resolve().parent  # a path below it is an import path, so the code needs no rewriting
ROOT = SOURCES.parent
PACKAGE = Path("ps_wire/v1")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")

Tree = dict[str, bytes]
"""Generated files by name."""


def main() -> int:
    """Brings the checked-in code up to date; with --check only says what is not."""
    parser = argparse.ArgumentParser(description="Regenerate the code of proto/ps_wire/v1/*.proto in place.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is not up to date")
    check: bool = parser.parse_args().check

    with tempfile.TemporaryDirectory() as folder:
        compile_into(Path(folder))
        fresh = read(Path(folder) / PACKAGE)
    findings = compare(read(ROOT / PACKAGE), fresh)
    for name, what in sorted(findings.items()):
        print(f"{PACKAGE.as_posix()}/{name}: {what}")
    if not findings:
        print(f"{len(fresh)} generated files are up to date")
    elif check:
        print("The checked-in code is not what the .proto files say: run `make proto` and look at the difference.")
        return 1
    else:
        update(findings, fresh)
        print("brought up to date")
    return 0


def compile_into(folder: Path) -> None:
    """Compiles every .proto; only those that declare a service get gRPC code, for the others it would be empty."""
    sources = sorted(path.relative_to(SOURCES) for path in (SOURCES / PACKAGE).glob("*.proto"))
    services = [path for path in sources if re.search(r"^service\s", (SOURCES / path).read_text("utf-8"), re.MULTILINE)]
    protoc(sources, f"--python_out={folder}", f"--pyi_out={folder}")
    protoc(services, f"--grpc_python_out={folder}")


def protoc(sources: list[Path], *options: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *options, *(path.as_posix() for path in sources)]
    done = subprocess.run(command, cwd=SOURCES, check=False)
    if done.returncode != 0:
        sys.exit("the compiler failed; nothing was changed")  # it has said why


def read(folder: Path) -> Tree:
    return {path.name: path.read_bytes() for pattern in GENERATED for path in folder.glob(pattern)}


def compare(checked_in: Tree, fresh: Tree) -> dict[str, str]:
    """Says what is wrong with each file that is not as it should be."""
    findings = {name: "missing" for name in fresh.keys() - checked_in.keys()}
    findings |= {name: why_stray(name) for name in checked_in.keys() - fresh.keys()}
    findings |= {name: "differs" for name in fresh.keys() & checked_in.keys() if fresh[name] != checked_in[name]}
    return findings


def update(names: Iterable[str], fresh: Tree) -> None:
    for name in names:
        path = ROOT / PACKAGE / name
        if name in fresh:
            path.write_bytes(fresh[name])
        else:
            path.unlink()


def why_stray(name: str) -> str:
    source = re.sub(r"_pb2(_grpc)?\.pyi?$", ".proto", name)
    if (SOURCES / PACKAGE / source).exists():
        return f"not wanted: {source} declares no service"
    return f"left over: there is no {source} any more"


if __name__ == "__main__":
    sys.exit(main())
