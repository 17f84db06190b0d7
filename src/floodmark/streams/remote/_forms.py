"""What streams, writers, transactions and answers look like as JSON values."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._entries import EntryKind
from floodmark.streams._layout import Layout
from floodmark.streams._log import Author, Opened
from floodmark.streams._positions import load_position, save_position
from floodmark.streams._settings import StreamSettings
from floodmark.streams._transactions import CommitResult
from floodmark.streams._why import WatermarkExplanation, WriterView
from floodmark.streams._writers import MarkOutcome


def save_stream(stream: StreamInfo) -> dict[str, Any]:
    """Return what a stream is."""
    return {
        "id": stream.id,
        "name": stream.name,
        "bucket": stream.bucket,
        "settings": stream.settings.save(),
        "layout": stream.layout.save(),
        "is_sealed": stream.is_sealed,
        "version": stream.version,
        "created_at": stream.created_at,
    }


def load_stream(saved: Mapping[str, Any]) -> StreamInfo:
    """Return the stream that was saved."""
    return StreamInfo(
        id=saved["id"],
        name=saved["name"],
        bucket=saved["bucket"],
        settings=StreamSettings.load(saved["settings"]),
        layout=Layout.load(saved["layout"]),
        is_sealed=saved["is_sealed"],
        version=saved["version"],
        created_at=saved["created_at"],
    )


def save_opened(opened: Opened) -> dict[str, Any]:
    """Return a writer as it was opened."""
    return {
        "writer": opened.author.writer,
        "instance": opened.author.instance,
        "next_number": opened.next_number,
        "watermarks": dict(opened.watermarks),
    }


def load_opened(saved: Mapping[str, Any]) -> Opened:
    """Return the writer that was saved."""
    author = Author(saved["writer"], saved["instance"])
    return Opened(author, saved["next_number"], dict(saved["watermarks"]))


def save_commit(result: CommitResult) -> dict[str, Any]:
    """Return what a commit came to."""
    outcome = None if result.outcome is None else result.outcome.value
    return {"position": save_position(result.position), "outcome": outcome}


def load_commit(saved: Mapping[str, Any]) -> CommitResult:
    """Return the commit that was saved."""
    outcome = None if saved["outcome"] is None else MarkOutcome(saved["outcome"])
    return CommitResult(load_position(saved["position"]), outcome)


def save_explanation(explanation: WatermarkExplanation) -> dict[str, Any]:
    """Return why a watermark stands where it stands."""
    kind = None if explanation.kind is None else explanation.kind.value
    return {**asdict(explanation), "kind": kind}


def load_explanation(saved: Mapping[str, Any]) -> WatermarkExplanation:
    """Return the explanation that was saved."""
    lists = {name: tuple(saved[name]) for name in ("holders", "set_aside", "idle", "closed", "timed_out")}
    return WatermarkExplanation(
        stream=saved["stream"],
        key=saved["key"],
        watermark=saved["watermark"],
        kind=None if saved["kind"] is None else EntryKind(saved["kind"]),
        waits_for=saved["waits_for"],
        next_at=saved["next_at"],
        writers=tuple(WriterView(**view) for view in saved["writers"]),
        **lists,
    )
