"""Check that private means private: no import of another folder's underscore module, or of another module's `_name`.

`floodmark._util` is private to the project, not to a folder. Prints one line a violation, and exits with 1 if any.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src"
SHARED = "floodmark._util"


def violations(file: Path) -> Iterator[str]:
    """Yield a line for each import of something private to another folder or module."""
    folder = ".".join(file.parent.relative_to(SOURCES).parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("floodmark"):
            continue
        module = (node.module or "").removeprefix(SHARED)
        where = f"{file.relative_to(SOURCES.parent)}:{node.lineno}"
        parent = module.rpartition(".")[0]
        if any(part.startswith("_") for part in module.split(".")) and parent != folder:
            yield f"{where}: {node.module} is private to {parent}"
        for name in node.names:
            if name.name.startswith("_"):
                yield f"{where}: {name.name} is private to {node.module}"


def main() -> int:
    """Check every file below src."""
    found = [line for file in sorted(SOURCES.rglob("*.py")) for line in violations(file)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
