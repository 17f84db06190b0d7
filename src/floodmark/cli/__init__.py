"""The command `floodmark`: questions to a home, answered without starting Spark.

| command | answers |
|---|---|
| `floodmark why QUERY` | where the watermark of a query stands, who holds it there, and what would release it |
| `floodmark why` | which queries there are |
| `floodmark version` | which releases are installed |
"""

from floodmark.cli._main import main

__all__ = ["main"]
