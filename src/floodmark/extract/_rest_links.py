"""Where a Link header leads, as RFC 8288 writes it."""

import re
from typing import Final

_LINK: Final = re.compile(r"\s*,*\s*<([^>]*)>((?:\s*;\s*[^\s=;,]+\s*(?:=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s;,\"]*))?)*)")
_PARAM: Final = re.compile(r";\s*([^\s=;,]+)\s*(?:=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;,\"]*)))?")


def next_link(header: str) -> str | None:
    """Return where the next page is, as it is written, if a header says so.

    >>> next_link('</x?page=1>; rel="prev", </x?page=3>; title="a, b"; rel="next last"')
    '/x?page=3'
    >>> next_link("</x>; rel=last") is None
    True
    """
    at = 0
    while link := _LINK.match(header, at):
        at = link.end()
        params: dict[str, str] = {}
        for name, quoted, bare in _PARAM.findall(link[2]):
            params.setdefault(name.lower(), quoted or bare)  # a second rel counts for nothing
        # A link with an anchor speaks of something else than what was asked for.
        if "next" in params.get("rel", "").lower().split() and "anchor" not in params:
            return link[1].strip()
    return None
