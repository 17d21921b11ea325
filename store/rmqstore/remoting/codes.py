"""The codes of requests to name servers and brokers, and of their answers, by RocketMQ's names.

Source: RequestCode.java; ResponseCode.java; RemotingSysResponseCode.java.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

_FIRST_OF_5: Final = 412  # Source: MQVersion.java, V5_0_0_SNAPSHOT


class RequestCode(IntEnum):
    """What is asked."""

    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    GET_ALL_TOPIC_CONFIG = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    VIEW_MESSAGE_BY_ID = 33
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    GET_TOPIC_CONFIG = 351
    GET_ALL_MESSAGE_REQUEST_MODE = 402


class ResponseCode(IntEnum):
    """What an answer says; there are others, which are passed on as they are."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    INVALID_PARAMETER = 29
    GO_AWAY = 1500


# Requests that brokers before 5.0 do not know.
OF_5: Final = frozenset({RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE})


def is_answered(code: int, version: int) -> bool:
    """Return whether a broker answers a request: before 5.0, none that it does not know.

    Args:
        code: of the request.
        version: of the broker, as its answers say it; 0 if it is not known.

    Source: AdminBrokerProcessor.java of 4.x.
    """
    return code not in OF_5 or not 0 < version < _FIRST_OF_5
