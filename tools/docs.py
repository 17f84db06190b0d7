"""Builds the browsable documentation: the README, and the API from its docstrings."""

import pkgutil
from pathlib import Path

import pdoc
import pdoc.render

import floodmark

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "docs"

floodmark.__doc__ = (ROOT / "README.md").read_text(encoding="utf-8")
# What the package loads late is shown as if it were there.
for name in floodmark.__all__:
    setattr(floodmark, name, getattr(floodmark, name))
# The package exports no rooms, and pdoc shows only what is exported.
floodmark.__all__ += [room.name for room in pkgutil.iter_modules(floodmark.__path__)]
pdoc.render.configure(docformat="google", footer_text=f"Floodmark {floodmark.__version__}")
pdoc.pdoc("floodmark", output_directory=OUTPUT)
print(f"docs: {(OUTPUT / 'index.html').relative_to(ROOT)}")
