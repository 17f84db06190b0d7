"""The functions of librdkafka that Kafka's Python client does not offer, called as its C header declares them.

The client for Python brings the library along, and takes one record a call. The library also takes many, from where
they lie in memory.
"""

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Final

import confluent_kafka.cimpl
from confluent_kafka import KafkaError

PRODUCER: Final = 0
UNASSIGNED: Final = -1
COPY: Final = 0x2
"""That the library copies the values, and so they may go as soon as it returns; keys are always copied."""
ERROR_TEXT: Final = 512

ErrorCallback: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)

_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_set_error_cb": (None, [c_void_p, ErrorCallback]),
    "rd_kafka_conf_set_log_cb": (None, [c_void_p, c_void_p]),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "rd_kafka_topic_destroy": (None, [c_void_p]),
    "rd_kafka_last_error": (c_int, []),
    "rd_kafka_fatal_error": (c_int, [c_void_p, c_char_p, c_size_t]),
    "rd_kafka_produce_batch": (c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
    "rd_kafka_poll": (c_int, [c_void_p, c_int]),
    "rd_kafka_flush": (c_int, [c_void_p, c_int]),
    "rd_kafka_outq_len": (c_int, [c_void_p]),
    "rd_kafka_init_transactions": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_begin_transaction": (c_void_p, [c_void_p]),
    "rd_kafka_commit_transaction": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_abort_transaction": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_error_code": (c_int, [c_void_p]),
    "rd_kafka_error_string": (c_char_p, [c_void_p]),
    "rd_kafka_error_is_fatal": (c_int, [c_void_p]),
    "rd_kafka_error_is_retriable": (c_int, [c_void_p]),
    "rd_kafka_error_txn_requires_abort": (c_int, [c_void_p]),
    "rd_kafka_error_destroy": (None, [c_void_p]),
}


class Message(ctypes.Structure):
    """A record, as `rd_kafka_message_t` has it."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


@cache
def library() -> Any | None:
    """Return the library that the client has loaded; None if it keeps its functions to itself, as some builds do."""
    found = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    try:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError:
        return None
    return found


def taken(lib: Any, error: int | None) -> KafkaError | None:
    """Return what an error of the library says, and let the library forget it; None if there is none."""
    if not error:
        return None
    try:
        return KafkaError(
            lib.rd_kafka_error_code(error),
            lib.rd_kafka_error_string(error).decode(errors="replace"),
            bool(lib.rd_kafka_error_is_fatal(error)),
            bool(lib.rd_kafka_error_is_retriable(error)),
            bool(lib.rd_kafka_error_txn_requires_abort(error)),
        )
    finally:
        lib.rd_kafka_error_destroy(error)
