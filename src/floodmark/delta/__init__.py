"""Delta Lake tables: commits of already written Parquet files, each numbered per application.

| name | does |
|---|---|
| `DeltaCommits` | opens or creates a table, and commits to it under an application name, each number once |
| `AppCommit` | a commit made under an application name, with its metadata |
| `StagedFile` | a Parquet file inside the table's directory that no commit names yet |

`sinks` and `ingest` import this room; it imports only `errors`. Start with `commits`. The client is deltalake
(delta-rs), which comes with `pip install "floodmark[delta]"`.
"""

from floodmark.errors import MissingPackage as _MissingPackage

try:
    import deltalake as _client  # noqa: F401
except ImportError as error:
    raise _MissingPackage(
        "The package deltalake is not installed.",
        rule="Delta Lake tables need it.",
        remedy='Install it: pip install "floodmark[delta]".',
        package="deltalake",
    ) from error

from floodmark.delta.commits import AppCommit, DeltaCommits
from floodmark.delta.staging import StagedFile

__all__ = ["AppCommit", "DeltaCommits", "StagedFile"]
