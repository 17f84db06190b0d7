"""Errors of REST services that rows are read from."""

from floodmark.errors._tree import InvalidValue, StateError


class RestRequestInvalid(InvalidValue):
    """What a source asks for cannot be written as a request, for this cell."""

    code = "rest-request-invalid"


class RestRefused(StateError):
    """A REST service refuses a request, or sends it to where it must not go."""

    code = "rest-refused"


class RestUnavailable(StateError):
    """A REST service does not answer, or not now, however often it was asked."""

    code = "rest-unavailable"


class RestAnswerInvalid(StateError):
    """A REST service answers what cannot be read as the source describes it."""

    code = "rest-answer-invalid"


class RestPagingEndless(StateError):
    """The pages of a REST service lead in a circle, or on and on."""

    code = "rest-paging-endless"


class RestSourceChanged(StateError):
    """What a REST service has changed while it was read page by page. The cell stays due."""

    code = "rest-source-changed"


class RestValueUnfit(StateError):
    """A value of a record does not fit the column that the schema gives it."""

    code = "rest-value-unfit"
