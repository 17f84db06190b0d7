"""Errors of the HTTP service, its tokens, and of homes behind it."""

from floodmark.errors._tree import InvalidValue, StateError, UnknownName


class RequestInvalid(InvalidValue):
    """A request is not of the form that the service reads."""

    code = "request-invalid"


class RequestTooLarge(InvalidValue):
    """A request is larger than the service takes."""

    code = "request-too-large"


class RequestTimedOut(StateError):
    """A request came so slowly that the service gave up on it."""

    code = "request-timed-out"


class TokenRefused(StateError):
    """A token opens nothing here: it is not known, was revoked, or is none."""

    code = "token-refused"


class TokenMissing(TokenRefused):
    """A request came without a token where one is needed."""

    code = "token-missing"


class TokenExpired(TokenRefused):
    """The time of a token has run out."""

    code = "token-expired"


class NotAllowed(StateError):
    """A token is good, but not for this."""

    code = "not-allowed"


class HostRefused(StateError):
    """A request without a token did not come for this machine, or came from a page of another."""

    code = "host-refused"


class UnknownToken(UnknownName):
    """There is no token of that id."""

    code = "unknown-token"


class TokensNeeded(StateError):
    """A service was to listen beyond its own machine, with no token to tell who may use it."""

    code = "tokens-needed"


class ServiceNotStarted(StateError):
    """A service could not listen where it was to."""

    code = "service-not-started"


class ServiceBusy(StateError):
    """A service has more to do than it may put off."""

    code = "service-busy"


class ServiceFailed(StateError):
    """A service met with something that it did not expect."""

    code = "service-failed"


class ServiceUnavailable(StateError):
    """None of the services of a home has answered."""

    code = "service-unavailable"


class ServiceUntrusted(StateError):
    """The certificate of a service is not one to trust."""

    code = "service-untrusted"


class AnswerInvalid(StateError):
    """What has answered is no service of Floodmark's, or one that this release does not understand."""

    code = "answer-invalid"
