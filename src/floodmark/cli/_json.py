"""Answers for programs."""

import json


def print_json(value: object) -> None:
    """Print one JSON object.

    >>> print_json({"now": 7})
    {
      "now": 7
    }
    """
    print(json.dumps(value, indent=2))
