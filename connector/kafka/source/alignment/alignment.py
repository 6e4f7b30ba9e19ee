"""Reads the marks of other queries, and decides where a micro-batch may end. Runs in the driver's source process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from connector.kafka.client.errors import UnknownTopicError
from connector.kafka.client.topics import Partition, short_id
from connector.kafka.marks.barrier_reader import BarrierReader, ReadsMarks
from connector.kafka.marks.channel import Channel, Followed, disagree, marks_within
from connector.kafka.marks.cuts import newest_cut
from connector.kafka.source.alignment.aim import Aim, AlignOptions, aligned, late_targets, stay, tracked, unaligned
from connector.kafka.source.alignment.cut import Cut
from connector.kafka.source.alignment.meeting import Checkpoints, Meeting, Situation
from connector.kafka.source.alignment.outlook import Outlook
from connector.kafka.source.offsets import Positions
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.topic_reader import TopicReader
from connector.location.location import CheckpointLocation
from connector.spark.internals import driver_identity
from transactional.clock import Clock
from transactional.errors import OptionError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from connector.kafka.source.planning.available import Available
    from connector.kafka.source.read_options import ReadOptions

AT_ONCE: Final = 1000
"""Maximum number of records that one call reads from a barrier topic."""

MOST_BYTES: Final = 16 << 20
"""Maximum size, in bytes, of one barrier topic's marks in memory. If they contain no place to stop, more marks are read."""

MOST: Final = 20_000
"""Maximum number of one barrier topic's marks in memory. If they contain no place to stop, more marks are read."""

TAIL: Final = 64
"""How many offsets at the end of each barrier topic a new query reads first, to find the newest place to begin."""

WARN_MS: Final = 60_000
"""The minimum time, in milliseconds, between two warnings that the query waits for newer marks."""

LOG_NAME: Final = "connector.kafka.alignment"

_log = logging.getLogger(LOG_NAME)


class Alignment:
    """Follows the barrier topics of one query, and decides how far each micro-batch may read.

    The marks are only in memory. If they are lost, they are read again, starting at the marks in the query's offsets.
    """

    def __init__(
        self,
        options: ReadOptions,
        align: AlignOptions,
        clock: Clock,
        open_reader: Callable[[Mapping[str, Any], str], ReadsMarks] = BarrierReader,
    ) -> None:
        self._options, self._align, self._clock = options, align, clock
        self._open_reader = open_reader  # Opens a reader of a barrier topic.
        self._readers: dict[str, ReadsMarks] = {}
        self._channels: dict[str, Channel] = {}
        self._ends: dict[str, int] = {}
        self._unread: set[str] = set()
        self._final: dict[str, int] | None = None
        self._now = 0
        self._meeting = None if align.location is None else _meeting(align.location)
        self._restored = True
        self._ids: Mapping[str, str] = {}
        self._blocked_since: int | None = None
        self._warned: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}, "_channels": {}}

    def close(self) -> None:
        """Close the readers of the barrier topics, and drop the marks in memory."""
        for reader in self._readers.values():
            reader.close()
        self._readers, self._channels = {}, {}

    # -- before the first row ---------------------------------------------------------------------------------------

    def check(self, admin: AdminClient, ids: Mapping[str, str]) -> None:
        """Check that the barrier topics exist, and that the newest marks describe the topics that the query reads."""
        self._ids = ids
        try:
            self._read_tails(self._reader(admin), TAIL)
            self._is_covered(ids)
        finally:
            self.close()

    def start(
        self, admin: AdminClient, ids: Mapping[str, str], within: Positions
    ) -> tuple[dict[Partition, int], Cut] | None:
        """Return where a new query with ``startingOffsets=latest`` begins, in the same form as `newest`.

        All sources of the query begin at the same marks.
        """
        if self._meeting is None:
            return self.newest(admin, ids, within)

        def choose() -> Checkpoints | None:
            found = self.newest(admin, ids, within)
            return None if found is None else found[1].checkpoints

        at = self._meeting.start(choose)
        if at is None:
            return None
        found = self.newest(admin, ids, within, at)
        if found is None:
            reason = f"another source of this query begins at the checkpoints {dict(at)}, whose marks can't be read now"
            raise disagree(", ".join(sorted(at)), reason)
        return found

    def newest(
        self, admin: AdminClient, ids: Mapping[str, str], within: Positions, at: Checkpoints | None = None
    ) -> tuple[dict[Partition, int], Cut] | None:
        """Return the end offsets and the `Cut` of the newest cut up to the positions `within`; None if there is none.

        A cut has one mark from each barrier topic. If `at` is given, return the cut with these checkpoints instead.
        """
        topics, length = self._reader(admin), TAIL
        self._ids = ids
        try:
            while True:
                whole = self._read_tails(topics, length)
                ahead = {name: channel.ahead for name, channel in self._channels.items()}
                most = {name: marks_within(marks, within) for name, marks in ahead.items()}
                cut = None
                if self._is_covered(ids):
                    cut = newest_cut(dict.fromkeys(ahead), ahead, most) if at is None else _passing(ahead, at)
                if cut is not None:
                    marks = {name: ahead[name][passed - 1] for name, passed in cut.items()}
                    ends = {p: end for mark in marks.values() for p, end in mark.ends.items()}
                    passed = {name: mark.passed for name, mark in marks.items()}
                    return ends, Cut(passed, exact=True, query=self._query())
                if whole:
                    return None
                length *= 16
        finally:
            self.close()

    def _read_tails(self, topics: TopicReader, length: int) -> bool:
        """Read the last `length` offsets of each barrier topic. Return whether every topic was read from its first record."""
        self.close()
        first = self._begins(topics)
        for name in self._align.topics:
            channel = Channel(name, None, {}, reads=self._reads(), tail=True)
            self._open(name, channel, max(first[name], self._ends[name] - length))
            self._read(name, length)
        return all(end - length <= first[name] for name, end in self._ends.items())

    # -- in each micro-batch ----------------------------------------------------------------------------------------

    def aim(self, available: Available, admin: AdminClient, limit: int | None, *, ends: bool, at_once: bool) -> Aim:
        """Return where the next micro-batch may end. Call this in each trigger, after `available` was computed.

        A mark is always visible before the rows that follow the mark. So this method can read all marks before the rows in
        `available`.
        """
        before, mode = available.before, self._align.mode
        if ends and self._final is None and mode == "exactly-once":
            found = self.newest(admin, before.ids, available.ends)
            self._final = {} if found is None else found[1].checkpoints
        cut = before.cut or Cut()
        marks = {name: mark for name, mark in cut.marks.items() if name in self._align.topics}
        # A channel that was added to alignOn has no mark yet. Until it has one, no cut is exact.
        cut = replace(cut, marks=marks, exact=cut.exact and marks.keys() == {*self._align.topics}, query=self._query())
        self._ids = before.ids
        met = None if self._meeting is None else self._meeting.look(cut, self._align.topics)
        final = self._final
        if met is not None and met.target is not None:
            cut, final, at_once = replace(cut, toward=met.target), None, False
        begin = {**available.first, **before.topics}
        self._now = int(self._clock.now() * 1000)  # also recorded as the time at which the marks below were seen
        self._follow(self._reader(admin), cut, begin)
        outlook = self._read_enough(
            lambda: Outlook(self._channels, cut, begin, available.ends, self._now, limit, final),
            everything=at_once,
        )
        if not self._is_covered(before.ids):
            aim = Aim(begin, lambda end: cut, closes_at_cuts=True)
        elif mode == "at-least-once":
            aim = tracked(outlook)
        elif mode == "unaligned":
            self._restored = self._restored and bool(late_targets(outlook))
            aim = unaligned(outlook, self._align.timeout_ms, restored=self._restored)
        elif met is None:
            aim = aligned(outlook, at_once=at_once)
        else:
            aim = self._together(outlook, met, at_once=at_once)
        self._warn(aim, outlook)
        return aim

    def _together(self, outlook: Outlook, met: Situation, *, at_once: bool) -> Aim:
        """Return the `Aim` of a source that has to stop at the same barriers as the query's other sources."""
        if met.waits:
            return stay(outlook, is_last=False)
        aim = aligned(outlook, at_once=at_once)
        if met.target is None:
            aim = self._agreed(aim, outlook, met)
        elif self._final is not None and aim.next is not None:
            aim = replace(aim, is_last=all(number >= self._final.get(name, 0) for name, number in aim.next.items()))
        return aim if aim.next is None else replace(aim, joins=aim.next in met.closing)

    def _agreed(self, aim: Aim, outlook: Outlook, met: Situation) -> Aim:
        """Propose the cut (one mark per barrier topic) of `aim` to the query's other sources, and return `aim`.

        If the sources have agreed on another cut meanwhile, return an `Aim` that reads nothing.
        """
        if self._meeting is None or aim.next is None:
            return aim
        agreed = self._meeting.agree(met, outlook.cut, aim.next)
        return aim if agreed == aim.next else stay(outlook, is_last=False)

    @property
    def is_together(self) -> bool:
        """True if this source and the query's other sources have to stop at the same barriers."""
        return self._meeting is not None

    def no_cut(self) -> Cut:
        """Return an empty `Cut`, for a source that has not passed any mark yet."""
        return Cut(query=self._query())

    def _query(self) -> str:
        return "" if self._meeting is None else self._meeting.query

    def _reads(self) -> frozenset[str] | None:
        return None if self._meeting is None else frozenset(self._ids)

    def _follow(self, topics: TopicReader, cut: Cut, begin: Positions) -> None:
        """Open a reader for each barrier topic, at the mark that the query has reached. Keep readers that are already there."""
        kept = {
            name
            for name, channel in self._channels.items()
            if (at := cut.marks.get(name)) == channel.at or (at is not None and channel.pass_to(at))
        }
        if kept == {*self._align.topics}:
            self._set_ends(topics.latest(self._places))
            return
        first = self._begins(topics)
        for name in sorted({*self._align.topics} - kept):
            at = cut.marks.get(name)
            if name in self._readers:
                self._readers.pop(name).close()
            channel = Channel(name, at, begin, reads=self._reads())
            self._open(name, channel, max(first[name], at.offset if at is not None else 0))

    def _open(self, name: str, channel: Channel, offset: int) -> None:
        self._check_end(channel)
        self._channels[name] = channel
        reader = self._readers[name] = self._open_reader(self._options.config.for_librdkafka(), name)
        reader.begin(offset)

    def _read_enough(self, look: Callable[[], Outlook], *, everything: bool) -> Outlook:
        """Read marks until they contain the next place to stop, or until no marks are left. Return the result of `look`.

        If `everything` is true, read all marks.
        """
        while True:
            for name in sorted(self._unread):
                channel = self._channels[name]
                while name in self._unread and (everything or not _is_full(channel)):
                    self._read(name, AT_ONCE)
            outlook = look()
            if not self._unread or outlook.has_cut():
                return outlook
            everything = True

    def _read(self, name: str, most: int) -> None:
        records = self._readers[name].read_to(self._ends[name], most)
        for offset, value in records:
            self._channels[name].add(offset, value, self._now)
        if len(records) < most:
            self._unread.discard(name)

    # -- the barrier topics -----------------------------------------------------------------------------------------

    @property
    def _places(self) -> list[Partition]:
        return [Partition(name, 0) for name in self._align.topics]

    def _reader(self, admin: AdminClient) -> TopicReader:
        return TopicReader(admin, self._options.config, self._options.retries, clock=self._clock)

    def _begins(self, topics: TopicReader) -> dict[str, int]:
        """Check that every barrier topic has exactly one partition. Store their end offsets, and return their first offsets."""
        try:
            there = topics.partitions(Subscription(topics=self._align.topics))
        except UnknownTopicError:
            raise OptionError("UNKNOWN_TOPIC", option="alignOn", topic=", ".join(self._align.topics)) from None
        if there != self._places:
            names = sorted({partition.topic for partition in there if partition.number})
            raise OptionError(
                "INVALID_OPTION",
                owner="barrier-kafka",
                option="alignOn",
                value=", ".join(names),
                expectation="barrier topics, each of which has exactly one partition",
            )
        first = {partition.topic: offset for partition, offset in topics.earliest(self._places).items()}
        self._set_ends(topics.latest(self._places))
        return first

    def _set_ends(self, latest: Positions) -> None:
        self._ends = {partition.topic: offset for partition, offset in latest.items()}
        self._unread = {*self._ends}
        for channel in self._channels.values():
            self._check_end(channel)

    def _check_end(self, channel: Channel) -> None:
        """Check that a barrier topic does not end before the newest mark that was read from it."""
        name, newest = channel.topic, channel.newest
        if newest is not None and self._ends[name] <= newest.offset:
            reason = (
                f"it ends at offset {self._ends[name]}, but this query has read a mark at offset {newest.offset}: the topic "
                "was deleted and created again, or truncated"
            )
            raise disagree(name, reason)

    def _is_covered(self, ids: Mapping[str, str]) -> bool:
        """Check that exactly one barrier topic describes each topic to read. Return whether all barrier topics have marks."""
        owners: dict[str, str] = {}
        for name, channel in sorted(self._channels.items()):
            for topic, identity in channel.ids.items():
                if topic in owners:
                    raise disagree(
                        name, f"it has marks of the topic {topic}, but {owners[topic]} has marks of that topic as well"
                    )
                if topic not in ids:
                    if self._meeting is not None:
                        continue  # another source of the query reads it
                    raise disagree(name, f"it has marks of the topic {topic}, which this query does not read")
                if ids[topic] and short_id(identity) != ids[topic]:
                    raise disagree(
                        name, f"the topic {topic} was deleted and created again after these marks were written"
                    )
                owners[topic] = name
        silent = [name for name, channel in self._channels.items() if not channel.ids]
        uncovered = sorted(ids.keys() - owners.keys())
        if uncovered and not silent:
            topics = ", ".join(sorted(self._channels))
            raise disagree(topics, f"no mark names the topic {', '.join(uncovered)}, which this query reads")
        return not silent

    def _warn(self, aim: Aim, outlook: Outlook) -> None:
        """If rows are visible but the query may not read them yet, log the reason, at most once per `WARN_MS`."""
        if aim.ends != outlook.begin or all(offset <= outlook.begin.get(p, 0) for p, offset in outlook.visible.items()):
            self._blocked_since = self._warned = None
            return
        if self._blocked_since is None:
            self._blocked_since = self._warned = outlook.now
        if self._warned is None or not 0 <= outlook.now - self._warned < WARN_MS:
            self._warned = outlook.now
            shown = ", ".join(_place(name, channel) for name, channel in sorted(self._channels.items()))
            seconds = (outlook.now - self._blocked_since) // 1000
            _log.warning(
                "barrier-kafka: rows are available, but none has been read for %d s, because the query waits for newer marks "
                "in its barrier topics: %s",
                seconds,
                shown,
            )


def _meeting(location: Mapping[str, str]) -> Meeting:
    return Meeting(CheckpointLocation.from_options(location), driver_identity)


def _passing(ahead: Mapping[str, Sequence[Followed]], at: Checkpoints) -> dict[str, int] | None:
    """Return how many marks of each topic to pass, up to the mark of checkpoint `at[topic]`; None if not all are in memory."""
    numbers = {name: [mark.checkpoint.checkpoint for mark in marks] for name, marks in ahead.items()}
    if any(checkpoint not in numbers.get(name, ()) for name, checkpoint in at.items()):
        return None
    return {name: numbers[name].index(checkpoint) + 1 for name, checkpoint in at.items()}


def _place(name: str, channel: Channel) -> str:
    """Describe the newest mark of a barrier topic in words, for a warning."""
    mark = channel.newest
    if mark is None:
        return f"{name} has no mark"
    stop = "" if channel.is_exact else ", where this query can't stop: the checkpoint has rows after these barriers"
    return f"{name} is at checkpoint {mark.checkpoint} with the barriers {dict(mark.lineage)}{stop}"


def _is_full(channel: Channel) -> bool:
    return len(channel.ahead) >= MOST or channel.size >= MOST_BYTES
