"""Errors of the values of records: what they should hold, and what they do hold."""

from floodmark.errors._tree import InvalidValue


class SchemaMismatch(InvalidValue):
    """Columns were asked for that values of the given schema do not have, or have as another type."""

    code = "schema-mismatch"


class ValueUndecodable(InvalidValue):
    """The value of a record is none of its format and schema; the fields `place` and `reason` say which and why."""

    code = "value-undecodable"
