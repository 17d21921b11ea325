"""Who a broker is, as far as its files say: name, cluster, id and address.

In controller mode a broker keeps ``brokerIdentity``. Its settings, ``broker.conf``, are those that
the user gives, or are read where they lie in the root of the store or in ``config/``. Otherwise the
topics that every broker makes for itself give its name and its cluster.

Source: BrokerMetadata.java; BrokerConfig.java, BrokerIdentity.java; TopicConfigManager.java, which
makes the topics.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import CorruptConfigError, OptionError
from rmqstore.storage.broker.store_config import read_properties
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small

logger = logging.getLogger(__name__)

MASTER_ID: Final = 0  # Source: MixAll.java
READ_AND_WRITE: Final = 6  # Source: PermName.java
_MAX_IDENTITY_BYTES: Final = 4096
_MAX_ID: Final = (1 << 63) - 1
_DEFAULT_PORT: Final = "10911"  # Source: BrokerStartup.java
# Source: TopicValidator.java#SYNC_BROKER_MEMBER_GROUP_PREFIX
_MEMBER_TOPIC: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
_CLUSTER_TOPIC: Final = "rmq_sys_REVIVE_LOG_"  # Source: PopAckConstants.java#REVIVE_TOPIC
_REPLY_TOPIC: Final = "_REPLY_TOPIC"  # Source: MixAll.java#REPLY_TOPIC_POSTFIX


class BrokerIdentity(NamedTuple):
    """The identity of a store's broker by its files; None for unknown parts.

    Attributes:
        name: the broker's name.
        cluster: the name of its cluster.
        broker_id: 0 for a master. In controller mode it says nothing about the role.
        address: where clients reach it, ``ip:port``.
        permission: the bits of ``perm`` that it allows, 4 to read and 2 to write.
        is_acting_master: whether a replica serves readers while there is no master
            (``enableSlaveActingMaster``).
    """

    name: str | None = None
    cluster: str | None = None
    broker_id: int | None = None
    address: str | None = None
    permission: int = READ_AND_WRITE
    is_acting_master: bool = False


def read_identity(paths: StorePaths, topics: Callable[[], list[str]]) -> BrokerIdentity:
    """Return who the broker of a store is.

    Args:
        paths: the store.
        topics: returns the topics of ``config/topics.json``; it is asked only if the other files
            leave something open.

    Raises:
        CorruptConfigError: ``broker.conf`` is damaged, or a number in it is not one.
    """
    identity = BrokerIdentity()
    file, settings = _settings(paths)
    if file is not None:
        try:
            has_controller = settings.get("enableControllerMode", "").lower() == "true"
            broker_id = _number(settings, "brokerId", None if has_controller else MASTER_ID)
            permission = _number(settings, "brokerPermission", READ_AND_WRITE) or 0
        except ValueError as err:
            raise CorruptConfigError(str(file), 0, str(err)) from err
        ip = settings.get("brokerIP1")
        identity = BrokerIdentity(
            name=settings.get("brokerName") or None,
            cluster=settings.get("brokerClusterName") or None,
            # Of controller mode RocketMQ's own examples say -1: the controller gives the number.
            broker_id=None if broker_id is not None and broker_id < 0 else broker_id,
            address=f"{ip}:{settings.get('listenPort') or _DEFAULT_PORT}" if ip else None,
            permission=permission,
            is_acting_master=settings.get("enableSlaveActingMaster", "").lower() == "true",
        )
    stored = _of_metadata(paths)
    if stored.name:
        identity = identity._replace(
            name=stored.name, cluster=stored.cluster, broker_id=stored.broker_id
        )
    if identity.name and identity.cluster:
        return identity
    known = topics()
    name = identity.name or _named_by(_MEMBER_TOPIC, known)
    cluster = identity.cluster or _named_by(_CLUSTER_TOPIC, known)
    if not cluster:
        of_replies = [topic for topic in known if topic.endswith(_REPLY_TOPIC)]
        if len(of_replies) == 1:
            cluster = of_replies[0].removesuffix(_REPLY_TOPIC)
    return identity._replace(name=name, cluster=cluster)


def broker_name(paths: StorePaths, topics: Callable[[], list[str]]) -> str | None:
    """Return the name of the broker of a store, None if no file gives it.

    Less is read for it than for :func:`read_identity`.
    """
    name = _of_metadata(paths).name or _settings(paths)[1].get("brokerName")
    return name or _named_by(_MEMBER_TOPIC, topics())


def _of_metadata(paths: StorePaths) -> BrokerIdentity:
    """Return what ``brokerIdentity`` says: ``cluster#broker#id``."""
    try:
        stored = read_small(paths.storage, paths.broker_identity, _MAX_IDENTITY_BYTES)
    except FileNotFoundError:
        return BrokerIdentity()
    parts = stored.decode(errors="replace").strip().split("#")
    if len(parts) != 3 or not parts[1]:
        logger.warning(
            "%s: not the form cluster#broker#id; it is passed over", paths.broker_identity
        )
        return BrokerIdentity()
    cluster, name, number = parts
    is_id = number.isascii() and number.isdecimal() and len(number) < len(str(_MAX_ID))
    return BrokerIdentity(name, cluster or None, int(number) if is_id else None)


def _settings(paths: StorePaths) -> tuple[Path | None, Mapping[str, str]]:
    """Return the broker's file and its settings: the given one, else one that is in the store."""
    if paths.settings is not None:
        given = paths.settings.values
        return Path(paths.settings.file), {key: _text(value) for key, value in given.items()}
    for folder in (paths.root, paths.config):
        file = folder / "broker.conf"
        try:
            settings = read_properties(file, paths.storage)
        except FileNotFoundError:
            continue
        except OptionError as err:
            raise CorruptConfigError(str(file), 0, str(err)) from err
        return file, {key: _text(value) for key, value in settings.items()}
    return None, {}


def _text(value: str) -> str:
    # Half a surrogate pair, which an escape can stand for, is a character in Java only.
    return value.strip().encode(errors="replace").decode()


def _number(settings: Mapping[str, str], key: str, default: int | None = None) -> int | None:
    text = settings.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or abs(int(text)) > _MAX_ID:
        raise ValueError(f"{key} {text[:50]!r}: must be an integer")
    return int(text)


def _named_by(prefix: str, topics: list[str]) -> str | None:
    """Return the name that a topic has after a prefix."""
    names = (topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix))
    return next(names, None) or None
