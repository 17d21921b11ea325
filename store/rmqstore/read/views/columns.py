"""The columns of each view and their Arrow types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rmqstore.format.schema import PROPERTIES, TIMESTAMP

BROKER_NAME: Final = "brokerName"

# fmt: off
COLUMN_TYPES: Final[dict[str, dict[str, pa.DataType]]] = {
    "queues": {
        BROKER_NAME:           pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "minOffset":           pa.int64(),   # queue offset of the first message that is there
        "maxOffset":           pa.int64(),   # after the last
        "messages":            pa.int64(),
        "bytes":               pa.int64(),   # of their records, as the units say
        "firstStoreTimestamp": TIMESTAMP,
        "lastStoreTimestamp":  TIMESTAMP,
        "reason":              pa.string(),  # why something is not known
    },
    "topics": {
        BROKER_NAME:           pa.string(),
        "topic":               pa.string(),
        "isSystem":            pa.bool_(),
        "queues":              pa.int32(),   # that have files
        "messages":            pa.int64(),
        "bytes":               pa.int64(),
        "firstStoreTimestamp": TIMESTAMP,
        "lastStoreTimestamp":  TIMESTAMP,
        "readQueueNums":       pa.int32(),   # of topics.json
        "writeQueueNums":      pa.int32(),
        "perm":                pa.int32(),   # 4 read, 2 write
        "reason":              pa.string(),
    },
    "commitlog": {
        BROKER_NAME:           pa.string(),
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int64(),   # bytes of the record, the blank, the stretch
        "kind":                pa.string(),  # record, blank, damage, missing, end
        "isValid":             pa.bool_(),
        "reason":              pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "storeTimestamp":      TIMESTAMP,
        "bornTimestamp":       TIMESTAMP,
        "sysFlag":             pa.int32(),
        "magic":               pa.string(),  # eight hex digits
        "bodySize":            pa.int32(),
        "propertiesSize":      pa.int32(),
        "preparedTransactionOffset": pa.int64(),
        "file":                pa.string(),
    },
    "consumequeue": {
        BROKER_NAME:           pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int32(),
        "tagsCode":            pa.int64(),
        "isValid":             pa.bool_(),
        "reason":              pa.string(),
    },
    "index": {
        BROKER_NAME:           pa.string(),
        "file":                pa.string(),
        "number":              pa.int32(),
        "slot":                pa.int32(),
        "keyHash":             pa.int32(),
        "commitLogOffset":     pa.int64(),
        "seconds":             pa.int32(),   # from the file's first record
        "storeTimestamp":      TIMESTAMP,    # to the second
        "previous":            pa.int32(),
        "isValid":             pa.bool_(),
        "reason":              pa.string(),
    },
    "groups": {
        BROKER_NAME:           pa.string(),
        "consumerGroup":       pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "consumerOffset":      pa.int64(),   # committed: the next one to consume
        "minOffset":           pa.int64(),
        "brokerOffset":        pa.int64(),   # the queue's maxOffset
        "lag":                 pa.int64(),   # messages
        "lagMillis":           pa.int64(),   # from the next message to the newest
        "nextStoreTimestamp":  TIMESTAMP,
        "lastStoreTimestamp":  TIMESTAMP,
        "reason":              pa.string(),
    },
    "epochs": {
        BROKER_NAME:           pa.string(),
        "epoch":               pa.int32(),
        "startOffset":         pa.int64(),   # physical offset of its first record
        "endOffset":           pa.int64(),   # where the next one starts, or the log ends
        "reason":              pa.string(),
    },
    "commits": {
        BROKER_NAME:           pa.string(),
        "commit":              pa.int64(),   # 1 for the first one of the history
        "timestamp":           TIMESTAMP,    # when it was committed
        "messages":            pa.int64(),
        "startOffset":         pa.int64(),   # physical offset of its first record
        "endOffset":           pa.int64(),   # physical offset after its last record
        "txnAppId":            pa.string(),  # query:ID for a micro-batch
        "txnVersion":          pa.int64(),   # the number of a micro-batch
        "isCut":               pa.bool_(),   # whether its records, or some, were cut off later
    },
    "stores": {
        BROKER_NAME:           pa.string(),
        "path":                pa.string(),  # the root of the store
        "clusterName":         pa.string(),
        "brokerId":            pa.int64(),   # 0: the master, but with a controller
        "brokerAddr":          pa.string(),  # of broker.conf
        "minOffset":           pa.int64(),   # physical, where the log begins
        "maxOffset":           pa.int64(),   # physical, after the last record
        "epoch":               pa.int32(),   # the last one, in controller mode
        "isRead":              pa.bool_(),   # whether a read of all the stores reads this one
        "reason":              pa.string(),  # why it does not, or what is wrong
    },
    "routes": {
        BROKER_NAME:           pa.string(),
        "topic":               pa.string(),
        "readQueueNums":       pa.int32(),
        "writeQueueNums":      pa.int32(),
        "perm":                pa.int32(),   # 4 read, 2 write
        "topicSysFlag":        pa.int32(),
        "clusterName":         pa.string(),
        "brokerAddrs":         PROPERTIES,   # by broker id
        "order":               pa.bool_(),
        "orderTopicConf":      pa.string(),  # as mqadmin writes it
        "reason":              pa.string(),
    },
    "assignments": {
        BROKER_NAME:           pa.string(),
        "consumerGroup":       pa.string(),
        "clientId":            pa.string(),  # null: the strategy gives the queue to nobody
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "consumerOffset":      pa.int64(),
        "brokerOffset":        pa.int64(),   # the queue's maxOffset
        "lag":                 pa.int64(),   # messages
        "lagBytes":            pa.int64(),
        "reason":              pa.string(),
    },
    "files": {
        BROKER_NAME:           pa.string(),
        "path":                pa.string(),  # below the store's root
        "kind":                pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "size":                pa.int64(),
        "allocated":           pa.int64(),   # bytes on the disk: files are sparse
        "rangeStart":          pa.int64(),   # physical offsets; queue offsets of a queue's files
        "rangeEnd":            pa.int64(),
        "modified":            TIMESTAMP,
        "state":               pa.string(),  # live, preallocated, empty, stale, cut
        "firstStoreTimestamp": TIMESTAMP,    # of its records, of files of the log and of the index
        "lastStoreTimestamp":  TIMESTAMP,
    },
    "deadLetters": {
        BROKER_NAME:           pa.string(),
        "consumerGroup":       pa.string(),  # that failed to consume the message
        "kind":                pa.string(),  # deadLetter, retry
        "topic":               pa.string(),  # of the copy
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "originTopic":         pa.string(),
        "originMsgId":         pa.string(),  # of the first message that was sent back
        "msgId":               pa.string(),  # the same for all copies that have a UNIQ_KEY
        "tags":                pa.string(),
        "keys":                pa.string(),
        "reconsumeTimes":      pa.int32(),   # attempts that have failed
        "bornTimestamp":       TIMESTAMP,    # when the message was sent first
        "storeTimestamp":      TIMESTAMP,    # when the copy was made
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int32(),
        "reason":              pa.string(),
    },
    "traces": {
        BROKER_NAME:           pa.string(),
        "traceType":           pa.string(),  # Pub, SubBefore, SubAfter, EndTransaction, Recall
        "timestamp":           TIMESTAMP,    # when a send or a consumption began, or ended
        "groupName":           pa.string(),  # of producers or of consumers
        "topic":               pa.string(),  # of the message
        "msgId":               pa.string(),
        "offsetMsgId":         pa.string(),
        "tags":                pa.string(),
        "keys":                pa.string(),
        "costMillis":          pa.int32(),
        "isSuccess":           pa.bool_(),
        "contextCode":         pa.int32(),   # how a consumption ended
        "retryTimes":          pa.int32(),
        "requestId":           pa.string(),  # the same for SubBefore and SubAfter
        "bodySize":            pa.int32(),
        "msgType":             pa.string(),
        "storeHost":           pa.string(),
        "clientHost":          pa.string(),
        "regionId":            pa.string(),
        "transactionId":       pa.string(),
        "transactionState":    pa.string(),
        "isTransactionCheck":  pa.bool_(),
        "traceTopic":          pa.string(),  # these are of the message that holds the trace
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "storeTimestamp":      TIMESTAMP,
        "commitLogOffset":     pa.int64(),
        "reason":              pa.string(),
    },
    "consumed": {
        BROKER_NAME:           pa.string(),
        "topic":               pa.string(),
        "queueId":             pa.int32(),
        "queueOffset":         pa.int64(),
        "consumerGroup":       pa.string(),  # null: no group has an offset of the topic
        "consumerOffset":      pa.int64(),   # that the group has committed of the queue
        "isPassed":            pa.bool_(),   # whether that is after the message
        "msgId":               pa.string(),
        "tags":                pa.string(),
        "keys":                pa.string(),
        "storeTimestamp":      TIMESTAMP,
        "commitLogOffset":     pa.int64(),
        "storeSize":           pa.int32(),
        "reason":              pa.string(),
    },
}
# fmt: on
