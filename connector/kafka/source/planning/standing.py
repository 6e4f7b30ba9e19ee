"""Compares a query's position with the partitions that exist now, and finds the partitions that were lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from connector.kafka.client.agreement import TopicView
from connector.kafka.client.errors import TopicChangedError
from connector.kafka.client.topics import Partition
from connector.kafka.source.offsets import Loss, Positions, Reason, SetAside, SourceOffset
from connector.kafka.source.subscription import Subscription
from connector.kafka.source.topic_reader import TopicReader


@dataclass(frozen=True)
class Standing:
    """A query's position in the partitions that exist now, and the partitions in which the query can't continue."""

    known: Positions  # The offset to read next, in each partition that the query has read before.
    recreated: tuple[Partition, ...]  # Partitions whose topic was deleted and created again.
    new: tuple[Partition, ...]  # Partitions that the query has not seen before.
    # Partitions that can't be continued: they are gone, or their topic was created again.
    lost: Mapping[Partition, Loss]
    gone: Mapping[str, SetAside]  # See `SourceOffset.gone`.


def stand(before: SourceOffset, partitions: Sequence[Partition], ids: Mapping[str, str]) -> Standing:
    """Compare a query's last end offset with the partitions and topic ids that exist now."""
    there = frozenset(partitions)
    recreated = recreated_topics(before.ids, ids)
    known: dict[Partition, int] = {}
    lost: dict[Partition, Loss] = {}
    for partition, offset in before.topics.items():
        if partition.topic in recreated:
            lost[partition] = Loss(offset, None, Reason.RECREATED)
        elif partition in there:
            known[partition] = offset
        else:
            lost[partition] = Loss(offset, None, Reason.GONE)
    returned, gone = _set_aside(before, ids, there)
    known.update(returned)
    for partition, loss in lost.items():
        if loss.reason is Reason.GONE:
            identity = before.ids.get(partition.topic, "")
            aside = gone.get(partition.topic, SetAside(identity, {}))
            others = aside.positions if aside.identity == identity else {}
            gone[partition.topic] = SetAside(identity, {**others, partition.number: loss.position})
    return Standing(
        known=known,
        recreated=tuple(partition for partition in partitions if partition.topic in recreated),
        new=tuple(p for p in partitions if p not in known and p.topic not in recreated),
        lost=lost,
        gone=gone,
    )


def _set_aside(
    before: SourceOffset, ids: Mapping[str, str], there: Collection[Partition]
) -> tuple[dict[Partition, int], dict[str, SetAside]]:
    """Split the recorded positions of missing partitions: return those of partitions that exist again, and the remaining ones.

    If a topic was created again, with another id, its positions are dropped.
    """
    known: dict[Partition, int] = {}
    gone: dict[str, SetAside] = {}
    for topic, aside in before.gone.items():
        if topic not in ids:
            gone[topic] = aside
        elif aside.identity in ("", ids[topic]):
            back = {number for number in aside.positions if Partition(topic, number) in there}
            known.update({Partition(topic, number): aside.positions[number] for number in back})
            if back != set(aside.positions):  # `assign` now names only some of them
                kept = {number: offset for number, offset in aside.positions.items() if number not in back}
                gone[topic] = replace(aside, positions=kept)
    return known, gone


def resume(
    standing: Standing, earliest: Positions, latest: Positions
) -> tuple[dict[Partition, int], dict[Partition, Loss]]:
    """Return, per partition, the offset at which reading continues, and the rows that were lost."""
    positions, lost = dict(standing.known), dict(standing.lost)
    for partition, position in standing.known.items():
        if latest[partition] < position:
            lost[partition] = Loss(position, latest[partition], Reason.TRUNCATED)
        elif earliest.get(partition, 0) > position:
            lost[partition] = Loss(position, earliest[partition], Reason.EXPIRED)
    for partition in standing.recreated:
        positions[partition] = earliest[partition]
        if partition in lost:
            lost[partition] = replace(lost[partition], resumes=earliest[partition])
    positions.update({p: loss.resumes for p, loss in lost.items() if p in positions and loss.resumes is not None})
    return {partition: positions[partition] for partition in sorted(positions)}, lost


def recreated_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics whose id has changed. A topic that does not exist now is not among them."""
    return frozenset(topic for topic, identity in before.items() if now.get(topic, identity) != identity)


def stand_surely(
    topics: TopicReader,
    at: SourceOffset,
    subscription: Subscription,
    may_miss: Collection[str],
    ask_each: Callable[[Sequence[str]], Sequence[Mapping[str, TopicView]]],
) -> Standing:
    """Compare a query's last offsets with the existing partitions. A partition counts as lost only if all asked brokers agree.

    The first broker's metadata may be old: this broker may not know a new partition yet, or may still know a deleted topic.
    If such an answer counted, the query would read the topic again from its first row.
    """
    partitions = topics.partitions(subscription, may_miss)
    standing = stand(at, partitions, topics.ids)
    # If the options no longer name a topic, the user has dropped it, and the brokers need not be asked.
    doubtful = sorted({partition.topic for partition in standing.lost if subscription.means(partition.topic)})
    if not doubtful:
        return standing
    answers = ask_each(doubtful)
    disputed = []
    for topic in doubtful:
        first = TopicView(topics.ids.get(topic, ""), frozenset(p.number for p in partitions if p.topic == topic))
        if any(_meant(topic, answer[topic], subscription) != first for answer in answers):
            disputed.append(topic)
    if disputed:
        raise TopicChangedError("TOPIC_CHANGED", topics=disputed)
    return standing


def _meant(topic: str, view: TopicView, subscription: Subscription) -> TopicView:
    """Return a broker's view of a topic without the partitions that the user did not assign."""
    if not subscription.assigned:
        return view
    return replace(view, partitions=view.partitions & {p.number for p in subscription.assigned if p.topic == topic})
