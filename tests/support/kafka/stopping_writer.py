"""A writer that stops itself between Kafka's acknowledgement and its own: run with store, brokers, stream and place."""

import os
import signal
import sys

from support.kafka.kafka_homes import Hook, open_home


def main(store: str, servers: str, stream: str, place: str) -> None:
    hook = Hook()
    with open_home(store, servers, hook) as home:
        writer = home.stream(stream).writer("stopped")
        writer.write_batch([10_000 + number for number in range(20)], key=[f"s{number % 5}" for number in range(20)])
        hook.at(place, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        writer.flush()
        writer.write_batch([10_020 + number for number in range(20)], key=[f"s{number % 5}" for number in range(20)])
        writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
