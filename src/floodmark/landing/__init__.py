"""Where the rows of a cell go: how they fit what is there, and how they become part of it, once.

Nothing of Spark is here: what its tasks write, and what is committed, are functions over Arrow and over a table's log.
"""

from floodmark.landing._drift import united
from floodmark.landing._fit import Fitted, Fitting
from floodmark.landing._live import LiveFile
from floodmark.landing._scope import Scope
from floodmark.landing._stream_landing import StreamLanding
from floodmark.landing._table import TableLanding
from floodmark.landing._tasks import Destination, Merge, Merged, Staged, Tasks
from floodmark.landing._writing import KeptRows, written

__all__ = [
    "Destination",
    "Fitted",
    "Fitting",
    "KeptRows",
    "LiveFile",
    "Merge",
    "Merged",
    "Scope",
    "Staged",
    "StreamLanding",
    "TableLanding",
    "Tasks",
    "united",
    "written",
]
