"""Tables of Delta Lake, as the rooms above need them: files that somebody else has written become part of a table.

| name | does |
|---|---|
| `DeltaCommits` | opens or makes a table, and commits to it under a name, each number once |
| `AppCommit` | a commit that was made under a name, and what was said with it |
| `StagedFile` | a Parquet file inside the table's directory that no commit names yet |

The client is deltalake (delta-rs), which comes with `pip install "floodmark[delta]"`.
"""

from floodmark.errors import MissingPackage as _MissingPackage

try:
    import deltalake as _client  # noqa: F401
except ImportError as error:
    raise _MissingPackage(
        "There is no client for Delta Lake: the package deltalake is not installed.",
        rule="Tables of Delta Lake need it.",
        remedy='Install it: pip install "floodmark[delta]".',
        package="deltalake",
    ) from error

from floodmark.delta.commits import AppCommit, DeltaCommits
from floodmark.delta.staging import StagedFile

__all__ = ["AppCommit", "DeltaCommits", "StagedFile"]
