"""Where the rows of a cell come from: what a row of a plan comes to, in parts that are read one by one.

A part says all that is needed to read it, is sent to whoever reads it, and gives batches of Arrow. Nothing of Spark
is here, and no secret: a part refers to secrets, and they are looked up where it is read.
"""

from floodmark.extract._files import FileManifest, ListedFile, changed, files_of, list_files, require_unchanged
from floodmark.extract._part import Part
from floodmark.extract._rest_part import RestPart, rest_parts
from floodmark.extract._sql_part import SqlPart, sql_parts

__all__ = [
    "FileManifest",
    "ListedFile",
    "Part",
    "RestPart",
    "SqlPart",
    "changed",
    "files_of",
    "list_files",
    "require_unchanged",
    "rest_parts",
    "sql_parts",
]
