"""Errors of REST services that rows are read from."""

from floodmark.errors._tree import InvalidValue, StateError


class RestRequestInvalid(InvalidValue):
    """What a source asks for cannot be written as a request, for this cell."""

    code = "rest-request-invalid"


class RestAnswerInvalid(StateError):
    """A REST service answers what cannot be read as the source describes it."""

    code = "rest-answer-invalid"


class RestPagingEndless(StateError):
    """The pages of a REST service lead in a circle, or on and on."""

    code = "rest-paging-endless"
