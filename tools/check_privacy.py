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
        if isinstance(node, ast.Import):
            modules, names = [alias.name for alias in node.names], []
        elif isinstance(node, ast.ImportFrom):
            modules, names = [node.module or ""], [alias.name for alias in node.names]
        else:
            continue
        where = f"{file.relative_to(SOURCES.parent)}:{node.lineno}"
        for module in (module for module in modules if module.startswith("floodmark")):
            path = module.removeprefix(SHARED)
            parent = path.rpartition(".")[0]
            if any(part.startswith("_") for part in path.split(".")) and parent != folder:
                yield f"{where}: {module} is private to {parent}"
            yield from (f"{where}: {name} is private to {module}" for name in names if name.startswith("_"))


def main() -> int:
    """Check every file below src."""
    found = [line for file in sorted(SOURCES.rglob("*.py")) for line in violations(file)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
