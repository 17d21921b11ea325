"""The on-disk format as constants: dtypes with byte offsets in the margin, magics, flags and limits. No functions.

Every integer on disk is big-endian and signed (Java's ByteBuffer). FORMAT.md draws the same layouts.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

# Source: MessageDecoder.java#MESSAGE_MAGIC_CODE, #MESSAGE_MAGIC_CODE_V2; CommitLog.java#BLANK_MAGIC_CODE; signed.
MESSAGE_MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MESSAGE_MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
# Source: DLedgerEntryType.java, MmapFileList.java#BLANK_MAGIC_CODE.
ENTRY_MAGIC: Final = 1
ENTRY_BLANK_MAGIC: Final = -1

TOPIC_LENGTH_BYTES: Final = {MESSAGE_MAGIC_V1: 1, MESSAGE_MAGIC_V2: 2}
MAX_V1_TOPIC_BYTES: Final = 127  # the length is stored in a signed byte
PROPERTIES_LENGTH_BYTES: Final = 2
MAX_PROPERTIES_BYTES: Final = 32767  # Source: MessageExtEncoder.java#encode


class SysFlag(IntFlag):
    """Bits of a record's ``sysFlag``. Source: MessageSysFlag.java."""

    COMPRESSED = 0x001
    MULTI_TAGS = 0x002
    TRANSACTION_PREPARED = 0x004
    TRANSACTION_COMMIT = 0x008
    TRANSACTION_TYPE = 0x00C  # a mask; both bits together mark a rollback
    BORN_HOST_V6 = 0x010
    STORE_HOST_V6 = 0x020
    HOSTS_V6 = 0x030
    NEED_UNWRAP = 0x040
    INNER_BATCH = 0x080
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    COMPRESSION_TYPE = 0x700  # a mask; clients before 4.9.4 set none of its bits and use ZLIB


# fmt: off
FRAME_HEAD: Final = np.dtype([        # the first bytes of a record or a blank: enough to step over it
    ("total_size",      ">i4"),       #  0  bytes of the whole record; of a blank: bytes up to the end of the file
    ("magic",           ">i4"),       #  4  MESSAGE_MAGIC_V1 | MESSAGE_MAGIC_V2 | BLANK_MAGIC
])

_HEAD: Final = [                      # the fields of a record that are always at the same offsets
    ("total_size",      ">i4"),       #  0  bytes of the whole record, this field included
    ("magic",           ">i4"),       #  4
    ("body_crc",        ">i4"),       #  8  crc32(stored body) & 0x7FFF_FFFF, 0 for an empty body
    ("queue_id",        ">i4"),       # 12
    ("flag",            ">i4"),       # 16  set by the sender, opaque to the store
    ("queue_offset",    ">i8"),       # 20  ordinal in (topic, queue); 0 for PREPARED and ROLLBACK
    ("physical_offset", ">i8"),       # 28  where the record itself begins in the CommitLog
    ("sys_flag",        ">i4"),       # 36  SysFlag: host widths, compression, transaction
    ("born_timestamp",  ">i8"),       # 40  ms; sys_flag decides at which offsets the later fields are
]
_TAIL: Final = [                      # after the store host
    ("reconsume_times",               ">i4"),   # 72 (IPv4 hosts; 12 more for each IPv6 host)
    ("prepared_transaction_offset",   ">i8"),   # 76  physical offset of the half message
    ("body_length",                   ">i4"),   # 84  bytes as stored, so after compression
]                                               # 88  body, topic length and topic, properties length and properties
_HOST_V4: Final = np.dtype([("address", "V4"),  ("port", ">i4")])
_HOST_V6: Final = np.dtype([("address", "V16"), ("port", ">i4")])

# The fixed part of a record, from total_size to body_length, by the IPv6 bits of sys_flag.
# Source: MessageExtEncoder.java#encode.
FIXED_PART: Final = {
    int(born | store): np.dtype([
        *_HEAD,
        ("born_host", _HOST_V6 if born else _HOST_V4),        # 48
        ("store_timestamp", ">i8"),                           # 56 (IPv4 born host)
        ("store_host", _HOST_V6 if store else _HOST_V4),      # 64 (IPv4 born host)
        *_TAIL,
    ])
    for born in (0, SysFlag.BORN_HOST_V6)
    for store in (0, SysFlag.STORE_HOST_V6)
}

ENTRY_HEAD: Final = np.dtype([        # before each record of a DLedger log. Source: DLedgerEntryCoder.java
    ("magic",           ">i4"),       #  0  ENTRY_MAGIC | ENTRY_BLANK_MAGIC
    ("size",            ">i4"),       #  4  bytes of the whole entry; of a blank: bytes up to the end of the file
    ("index",           ">i8"),       #  8  from 0, without gaps
    ("term",            ">i8"),       # 16  never falls
    ("position",        ">i8"),       # 24  physical offset of the entry itself
    ("channel",         ">i4"),       # 32  0
    ("chain_crc",       ">i4"),       # 36  0, never set
    ("body_crc",        ">i4"),       # 40  0, never set
    ("body_length",     ">i4"),       # 44  bytes of the record
])                                    # 48  the record

QUEUE_UNIT: Final = np.dtype([        # one entry of a ConsumeQueue. Source: ConsumeQueue.java
    ("physical_offset", ">i8"),       #  0
    ("size",            ">i4"),       #  8  bytes of the record; 0 after the end; MAX_INT in the pre-blank filler
    ("tags_code",       ">i8"),       # 12  hash of the tag, delivery time in SCHEDULE_TOPIC_XXXX, or an ext address
])

ROCKSDB_UNIT: Final = np.dtype([      # the value of a unit in RocksDB. Source: RocksDBConsumeQueueTable.java
    ("physical_offset", ">i8"),       #  0
    ("size",            ">i4"),       #  8  bytes of the record
    ("tags_code",       ">i8"),       # 12
    ("store_timestamp", ">i8"),       # 20  ms
])

BATCH_UNIT: Final = np.dtype([        # one entry of a BatchConsumeQueue. Source: BatchConsumeQueue.java
    ("physical_offset", ">i8"),       #  0
    ("size",            ">i4"),       #  8  bytes of the record; 0 after the end
    ("tags_code",       ">i8"),       # 12  of the record; messages of an inner batch may have other tags
    ("store_timestamp", ">i8"),       # 20  ms
    ("base_offset",     ">i8"),       # 28  queue offset of the record's first message
    ("batch_size",      ">i2"),       # 36  number of messages in the record, at least 1
    ("compacted",       ">i4"),       # 38  offset in a compacted log, or -1
    ("reserved",        ">i4"),       # 42
])

INNER_HEAD: Final = np.dtype([        # the fixed part of a message in an inner batch. Source: MessageDecoder.java
    ("total_size",      ">i4"),       #  0  bytes of the whole message
    ("magic",           ">i4"),       #  4  0, never checked
    ("body_crc",        ">i4"),       #  8  0, never checked
    ("flag",            ">i4"),       # 12
    ("body_length",     ">i4"),       # 16
])                                    # 20  body, properties length (2 bytes) and properties

EXT_UNIT: Final = np.dtype([          # the head of a unit of consumequeue_ext. Source: ConsumeQueueExt.java#CqExtUnit
    ("size",            ">i2"),       #  0  bytes of the whole unit with its bit map; -1 marks the end of a file
    ("tags_code",       ">i8"),       #  2
    ("store_timestamp", ">i8"),       # 10  of the message, ms
    ("bit_map_size",    ">i2"),       # 18  bytes of the bit map that follows, or 0
])

CHECKPOINT: Final = np.dtype([        # the first bytes of `checkpoint`. Source: StoreCheckpoint.java
    ("physic_msg_timestamp",  ">i8"),   #  0  store time of the last record known to be on disk, ms
    ("logics_msg_timestamp",  ">i8"),   #  8  the same for the ConsumeQueues
    ("index_msg_timestamp",   ">i8"),   # 16  end time of the last full IndexFile
    ("master_flushed_offset", ">i8"),   # 24  5.x only
    ("confirm_phy_offset",    ">i8"),   # 32  5.1.1 and later only
    ("logics_phy_offset",     ">i8"),   # 40  5.5.0 and later only: start of the last record that is in all queues
])

INDEX_HEADER: Final = np.dtype([      # the first bytes of an index file. Source: IndexHeader.java
    ("begin_timestamp",   ">i8"),     #  0  store time of the first indexed record, ms
    ("end_timestamp",     ">i8"),     #  8  store time of the last indexed record, ms
    ("begin_phy_offset",  ">i8"),     # 16
    ("end_phy_offset",    ">i8"),     # 24
    ("hash_slot_count",   ">i4"),     # 32  slots in use
    ("index_count",       ">i4"),     # 36  number of the next item; item 0 is never used
])
INDEX_SLOT: Final = np.dtype(">i4")   # number of the newest item of the chain, or 0
INDEX_ITEM: Final = np.dtype([        # Source: IndexFile.java#putKey
    ("key_hash",          ">i4"),     #  0  |hash of "topic#key"|
    ("physical_offset",   ">i8"),     #  4
    ("seconds",           ">i4"),     # 12  store time, counted from the file's begin_timestamp
    ("previous",          ">i4"),     # 16  number of the previous item of the chain, or 0
])

TIMER_CHECK: Final = np.dtype([       # the first bytes of `timercheck`. Source: TimerCheckpoint.java
    ("read_time",           ">i8"),   #  0  the next second to be delivered, ms
    ("log_flushed",         ">i8"),   #  8  position in the timer log up to which it was flushed
    ("queue_offset",        ">i8"),   # 16  of the next message of the timer topic to enter into the wheel
    ("master_queue_offset", ">i8"),   # 24
])
TIMER_SLOT: Final = np.dtype([        # one second of `timerwheel`. Source: Slot.java
    ("time",       ">i8"),            #  0  due time / precision; any earlier one if nothing is due
    ("first",      ">i8"),            #  8  position of its first unit in the timer log, or -1
    ("last",       ">i8"),            # 16  position of its last unit in the timer log, or -1
    ("count",      ">i4"),            # 24  units less twice the deletes
    ("reserved",   ">i4"),            # 28
])
TIMER_UNIT: Final = np.dtype([        # one entry of the timer log. Source: TimerLog.java
    ("size",            ">i4"),       #  0  52
    ("previous",        ">i8"),       #  4  position of the unit before it in its slot, or -1
    ("magic",           ">i4"),       # 12  TimerMagic
    ("write_time",      ">i8"),       # 16  ms
    ("delay",           ">i4"),       # 24  ms from write_time to the second of its slot
    ("physical_offset", ">i8"),       # 28  of the record in the timer topic
    ("record_size",     ">i4"),       # 36
    ("topic_hash",      ">i4"),       # 40  hash code of the real topic
    ("reserved",        ">i8"),       # 44
])

assert FRAME_HEAD.itemsize == 8
assert (TIMER_SLOT.itemsize, TIMER_UNIT.itemsize) == (32, 52)
assert ENTRY_HEAD.itemsize == 48
assert {bits: fixed.itemsize for bits, fixed in FIXED_PART.items()} == {0: 88, 0x10: 100, 0x20: 100, 0x30: 112}
assert (QUEUE_UNIT.itemsize, EXT_UNIT.itemsize, INDEX_HEADER.itemsize, INDEX_ITEM.itemsize) == (20, 20, 40, 20)

assert (BATCH_UNIT.itemsize, ROCKSDB_UNIT.itemsize, INNER_HEAD.itemsize) == (46, 28, 20)

# Source: TimerMessageStore.java#TIMER_WHEEL_TTL_DAY, TimerWheel.java: the wheel has two times seven days of seconds.
TIMER_SLOTS: Final = 2 * 7 * 24 * 3600
TIMER_BLANK_MAGIC: Final = -875286124  # ends a file of the timer log. Source: TimerLog.java#BLANK_MAGIC_CODE
TIMER_PRECISIONS_MS: Final = (100, 200, 500, 1000)  # Source: MessageStoreConfig.java#setTimerPrecisionMs

CHECKPOINT_FILE_BYTES: Final = 4096  # one page of the operating system
FIXED_PART_V4: Final = FIXED_PART[0]
MIN_RECORD_BYTES: Final = FIXED_PART_V4.itemsize + 1 + PROPERTIES_LENGTH_BYTES
MAX_FIXED_BYTES: Final = FIXED_PART[int(SysFlag.HOSTS_V6)].itemsize
# Source: CommitLog.java#END_FILE_MIN_BLANK_LENGTH: a record never reaches into the last bytes of a file.
MIN_BLANK_BYTES: Final = 8

# Source: MessageStoreConfig.java: mappedFileSizeCommitLog is a Java int.
MAX_FILE_BYTES: Final = (1 << 31) - 1

# Source: ConsumeQueue.java#fillPreBlank: units before the first one of a queue that does not begin at 0.
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
# The tags code of units that a rebuild puts at queue offsets that no record has. They lead to the next record of the
# queue, which a broker serves there too; it is the tags code of no message, and no address.
GAP_TAGS_CODE: Final = 0x6E6F_7265_8000_0001
NOT_COMPACTED: Final = -1  # Source: BatchConsumeQueue.java#INVALID_POS
MAX_BATCH: Final = (1 << 15) - 1  # messages of one record, which a unit of a BatchConsumeQueue stores in 16 bits
# Source: ConsumeQueueExt.java#MAX_ADDR: a tags_code at or below this is an address into consumequeue_ext.
MAX_EXT_ADDRESS: Final = -(1 << 31) - 1

# Source: MessageDecoder.java#NAME_VALUE_SEPARATOR, #PROPERTY_SEPARATOR.
NAME_VALUE_SEPARATOR: Final = 0x01
PROPERTY_SEPARATOR: Final = 0x02

# Names of the properties that mean something to this package. Source: MessageConst.java.
PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_CRC32: Final = "__CRC32#"

PROPERTY_DELAY: Final = "DELAY"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
PROPERTY_INNER_NUM: Final = "INNER_NUM"  # number of messages of an inner batch
PROPERTY_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"  # light message queues, separated by commas
PROPERTY_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"  # the queue offset in each

LMQ_PREFIX: Final = "%LMQ%"  # Source: MixAll.java#LMQ_PREFIX

# Source: TopicValidator.java#RMQ_SYS_SCHEDULE_TOPIC; MessageStoreConfig.java#messageDelayLevel, level 1 first.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS_MS: Final = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)

# Brokers of 3.2 add a millisecond to the time of delivery.
DELIVERY_TOLERANCE_MS: Final = 10

CRC_MASK: Final = 0x7FFFFFFF
# Source: MessageDecoder.java#createCrc32: name, separator, ten digits (least significant first), separator.
CRC_PROPERTY_HEAD: Final = PROPERTY_CRC32.encode() + bytes([NAME_VALUE_SEPARATOR])
CRC_PROPERTY_DIGITS: Final = 10
CRC_PROPERTY_BYTES: Final = len(CRC_PROPERTY_HEAD) + CRC_PROPERTY_DIGITS + 1

# The most that a body may inflate to. No sensible maxMessageSize (4 MiB by default) comes near it, and without a limit
# a few hostile kilobytes could take gigabytes of memory.
MAX_BODY_BYTES: Final = 256 << 20

# The first and last millisecond of the years 1 to 9999 in the proleptic calendar, which Arrow, Python and Spark can all
# represent. RocketMQ does not check times; a time outside of these years counts as damage.
FIRST_TIMESTAMP: Final = -62_135_596_800_000
LAST_TIMESTAMP: Final = 253_402_300_799_999

# How much is decoded at once: large enough to amortise the cost of calls, small enough for the second-level cache.
BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 16 << 20
