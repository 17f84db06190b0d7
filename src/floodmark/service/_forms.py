"""What requests and answers look like. The OpenAPI document is made of this."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from floodmark._util.ints import INT64_MAX, INT64_MIN

MOST_SEGMENTS = 10_000

Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX, strict=True)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX, strict=True)]
Micros = Annotated[int, Field(ge=0, le=10**15, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
SegmentId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,17})$")]
Position = Annotated[dict[SegmentId, Int64], Field(examples=[{"0": 100}], description="The offset in each segment.")]
Outcome = Literal["accepted", "time went back", "position went back"]


class Form(BaseModel):
    """Exactly these fields, of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SettingsForm(Form):
    """Settings of a stream. Durations are in microseconds."""

    arrow_schema: str | None = Field(default=None, alias="schema", description="The Arrow schema, in base64.")
    ddl: str | None = Field(default=None, description="In place of it, the schema as Spark writes it.")
    time_columns: list[Annotated[list[str | None], Field(min_length=2, max_length=2)]] | None = Field(
        default=None, description="Pairs of a key and its column; the first is the default key."
    )
    unit: str | None = Field(default=None, examples=["us"])
    writer_timeout: Micros | None = None
    first_mark_delay: Micros | None = None
    rate_floor: Micros | None = None
    forget_after: Micros | None = None
    marks_retention: Micros | None = None
    transaction_timeout: Micros | None = None


class NewStream(Form):
    """A stream to create. Who brings the id may ask again when the answer was lost."""

    name: Name = Field(examples=["shop/orders"])
    id: Count | None = None
    segments: Annotated[int, Field(ge=1, le=MOST_SEGMENTS)] = 1
    settings: SettingsForm = Field(default_factory=lambda: SettingsForm.model_validate({}))


class Scaling(Form):
    """Segments to seal, and the ranges of keys of those in their place."""

    epoch: Count | None = Field(default=None, description="If the stream is in another epoch, nothing is done.")
    seal: Annotated[list[Int64], Field(max_length=MOST_SEGMENTS)]
    ranges: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(max_length=MOST_SEGMENTS)]


class OpenWriter(Form):
    """A writer to open; without an id it notes no time."""

    writer: Name | None = None
    keys: list[Name] | None = Field(
        default=None, description="The keys it notes time for; without them, all of the stream."
    )


class AuthorForm(Form):
    """Who writes: a writer, and which of those that were opened under its id."""

    writer: Name = Field(examples=["till-3"])
    instance: Int64


class Word(AuthorForm):
    """What a writer says of itself, and how far it has written."""

    position: Position


class MarkForm(Word):
    """A mark: all before the position is written, and what comes has at least this time."""

    key: Name
    time: Int64


class MarkOfStream(MarkForm):
    """A mark, and the stream it is for."""

    stream: Count
    name: str | None = None


class MarksForm(Form):
    """Many marks."""

    marks: Annotated[list[MarkOfStream], Field(min_length=1)]


class NewTransaction(AuthorForm):
    """A transaction to begin. Who brings its id may ask again when the answer was lost."""

    transaction: Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")] | None = None
    timeout: Annotated[int, Field(ge=1, le=10**15)] | None = None


class CommitForm(Form):
    """A commit to ask for, and the time to note with it."""

    key: Name | None = None
    time: Int64 | None = None


class Refusal(BaseModel):
    """Why something was not done: the fact, the rule, the way out, and the values it speaks of."""

    code: str = Field(examples=["unknown-stream"])
    fact: str
    rule: str
    remedy: str
    fields: dict[str, Any]


class StreamView(BaseModel):
    """What a stream is."""

    id: int
    name: str
    bucket: int
    settings: dict[str, Any]
    layout: dict[str, Any]
    ddl: str | None
    is_sealed: bool
    version: int
    created_at: int


class StreamsView(BaseModel):
    """Streams, by their names."""

    streams: list[StreamView]


class EndsView(BaseModel):
    """How far segments are filled."""

    ends: dict[str, int]


class OpenedView(BaseModel):
    """A writer as it was opened; its times must be above the watermarks to count."""

    writer: str
    instance: int
    next_number: int
    watermarks: dict[str, int | None]


class OutcomeView(BaseModel):
    """What became of a mark."""

    outcome: Outcome


class ResultView(BaseModel):
    """What became of one mark of many: an outcome, or an error."""

    outcome: Outcome | None
    error: Refusal | None


class ResultsView(BaseModel):
    """What became of many marks, in their order."""

    results: list[ResultView]


class TransactionView(BaseModel):
    """A transaction that was begun."""

    transaction: str


class StateView(BaseModel):
    """Where a transaction is."""

    state: Literal["open", "committing", "committed", "aborting", "aborted"]


class CommitView(BaseModel):
    """What a commit came to."""

    position: dict[str, int]
    outcome: Outcome | None


class EntriesView(BaseModel):
    """Entries of a marks log, in their order."""

    entries: list[dict[str, Any]]


class EntryView(BaseModel):
    """An entry of a marks log."""

    entry: dict[str, Any]


class FoundEntryView(BaseModel):
    """An entry of a marks log, if there is one."""

    entry: dict[str, Any] | None


class NumbersView(BaseModel):
    """The numbers of the first and the last entry that are kept; 0 if there is none."""

    first: int
    last: int


class ExplanationView(BaseModel):
    """Why a watermark stands where it stands."""

    stream: str
    key: str
    watermark: int | None
    kind: str | None
    waits_for: str
    holders: list[str]
    next_at: int | None
    set_aside: list[str]
    idle: list[str]
    closed: list[str]
    timed_out: list[str]
    writers: list[dict[str, Any]]


class TimeView(BaseModel):
    """The time by the clock of the store, in microseconds since the epoch."""

    now: int


class HealthView(BaseModel):
    """Whether the service is up."""

    status: Literal["ok"]


class Done(BaseModel):
    """It is done."""
