"""Translation of librdkafka's errors: retry later, or change the declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lake.connect.kafka.source.options import KafkaOptions
from lake.errors import DeclarationError, LakeError, Unavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

REFUSING: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_SSL"})
UNKNOWN: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"})
LASTING: Final = (
    REFUSING
    | UNKNOWN
    | {"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "INVALID_GROUP_ID"}
    | {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT", "POLICY_VIOLATION"}
    | {"INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "INVALID_CONFIG"}
    | {"_INVALID_ARG", "INVALID_REQUEST", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "_NOT_IMPLEMENTED"}
)
"""Errors that last until the declaration or the user's rights change."""
MOVING: Final = frozenset(
    {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"}
    | {"FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "_NO_OFFSET"}
)


class NoLeader(Unavailable):
    """A partition temporarily has no leader."""


class UnknownTopic(DeclarationError):
    """The topic does not exist."""


def may_pass(error: KafkaError) -> bool:
    """Return whether a retry may succeed."""
    return not _is(error, LASTING)


def kafka_error(error: KafkaError, options: KafkaOptions, about: str = "") -> LakeError:
    """Return the LakeError for an error of librdkafka; `about` is the prefix of its message."""
    message = f"{about}{options.redacted(error.str())}"
    if _is(error, MOVING):
        return NoLeader(f"Kafka is unavailable: {message}", where=options.where, fix="try again in a moment")
    if may_pass(error):
        return unavailable(message, options)
    fix = "ask who runs the cluster for what this user may do"
    if _is(error, REFUSING):
        message, fix = f"authentication failed: {message}", "correct the sasl.… and ssl.… settings in [client]"
    elif _is(error, UNKNOWN):
        return UnknownTopic(message, where=options.where, fix="correct its name, or make the topic first")
    return DeclarationError(message, where=options.where, fix=fix)


def unavailable(what: str, options: KafkaOptions) -> Unavailable:
    """Return the error for brokers that do not answer."""
    fix = "try again when the brokers answer; is bootstrap right?"
    return Unavailable(f"Kafka is unavailable: {what}", where=options.where, fix=fix)


def _is(error: KafkaError, names: frozenset[str]) -> bool:
    return error.code() in {getattr(type(error), name) for name in names}
