"""The help of the command line: options in groups, and two examples for each verb."""

from __future__ import annotations

from typing import Final

OPTION_GROUPS: Final[dict[str, list[str]]] = {
    "Options": [],  # what is in no other group; they come first
    "From Kafka": ["--from-kafka", "--kafka-topic", "--replace-dots"],
    "Which store": [
        "--conf", "--brokers", "--commitlog", "--consumequeue", "--index", "--dledger-log",
        "--dledger-self-id", "--tiered", "--storage-option",
    ],
    "Output": [
        "--format", "--json", "--output", "--overwrite", "--limit", "--times", "--tz",
        "--wide", "--fail-if-empty", "--quiet",
    ],
}  # fmt: skip
# Each is run by tests/cli/test_help.py.
EXAMPLES: Final = {
    "assign": (
        "rmqstore assign /data/rocketmq/store -g CG_part -c host-1@17 -c host-2@23",
        "rmqstore assign /data/rocketmq/store -g billing -t Orders -c c1 --strategy AVG_BY_CIRCLE",
    ),
    "brokers": (
        "rmqstore brokers /data/rocketmq/store /data/rocketmq/crashed",
        "rmqstore brokers -c /data/rocketmq/broker.conf --json",
    ),
    "copy": (
        "rmqstore copy /data/rocketmq/store /lake/store-copy",
        "rmqstore copy /data/rocketmq/store /lake/orders-store --since -30d -t Orders",
    ),
    "describe": (
        "rmqstore describe /data/rocketmq/store",
        "rmqstore describe -c /data/rocketmq/broker.conf --columns state,maxOffset --json",
    ),
    "doctor": ("rmqstore doctor", "rmqstore doctor /data/rocketmq/store --json"),
    "dump": (
        "rmqstore dump /data/rocketmq/store -t Orders --tags paid -n 10",
        "rmqstore dump /data/rocketmq/store -t Orders -b -7d --columns keys,body",
    ),
    "export": (
        "rmqstore export /data/rocketmq/store /lake/orders.parquet -t Orders",
        "rmqstore export /data/rocketmq/store /lake/orders.jsonl.gz -t Orders -b -7d",
    ),
    "follow": (
        "rmqstore follow broker-a:10911 /lake/broker-a",
        "rmqstore follow --namesrv ns-1:9876 /lake/copies --retain 30d",
    ),
    "get": (
        "rmqstore get /data/rocketmq/store 496",
        "rmqstore get /data/rocketmq/store 7F0000010000904D00000000000001F0",
    ),
    "groups": (
        "rmqstore groups /data/rocketmq/store",
        "rmqstore groups /data/rocketmq/store -t LivePlain --format csv",
    ),
    "import": (
        "rmqstore import /data/rocketmq/other rows.jsonl",
        "rmqstore import /data/rocketmq/other rows.jsonl -t OrdersReplay --dry-run",
    ),
    "kafka": (
        "rmqstore kafka stat /data/kafka/logs",
        "rmqstore kafka dump /data/kafka/logs -t G -n 10",
    ),
    "kafka dump": (
        "rmqstore kafka dump /data/kafka/logs -t G --isolation-level read_committed",
        "rmqstore kafka dump /data/kafka/logs -t G -p 0 --batches",
    ),
    "kafka get": (
        "rmqstore kafka get /data/kafka/logs G-0 17",
        "rmqstore kafka get /data/kafka/logs G-0 17 --format csv",
    ),
    "kafka groups": (
        "rmqstore kafka groups /data/kafka/logs",
        "rmqstore kafka groups /data/kafka/logs --format csv",
    ),
    "kafka stat": (
        "rmqstore kafka stat /data/kafka/logs --all",
        "rmqstore kafka stat /data/kafka/logs/G-0 --json",
    ),
    "kafka verify": (
        "rmqstore kafka verify /data/kafka/logs",
        "rmqstore kafka verify /data/kafka/logs -t G --json",
    ),
    "query": (
        "rmqstore query /data/rocketmq/store -t Orders -k order-17",
        "rmqstore query /data/rocketmq/store -t Orders --time -1h",
    ),
    "rebuild": (
        "rmqstore rebuild /data/rocketmq/store --dry-run",
        "rmqstore rebuild /data/rocketmq/crashed --truncate --yes",
    ),
    "report": (
        "rmqstore report /data/rocketmq/store -o report.html",
        "rmqstore report /data/rocketmq/store -o quick.html --no-verify",
    ),
    "routes": (
        "rmqstore routes /data/rocketmq/store",
        "rmqstore routes -c /data/rocketmq/broker.conf -t Orders --json",
    ),
    "stat": (
        "rmqstore stat /data/rocketmq/store -t Orders",
        "rmqstore stat -c /data/rocketmq/broker.conf --all --json",
    ),
    "topics": (
        "rmqstore topics /data/rocketmq/store",
        "rmqstore topics /data/rocketmq/store --columns topic,messages --format csv",
    ),
    "trace": (
        "rmqstore trace /data/rocketmq/store 496",
        "rmqstore trace /data/rocketmq/store 7F0000010000904D00000000000001F0 --json",
    ),
    "verify": (
        "rmqstore verify /data/rocketmq/store",
        "rmqstore verify /data/rocketmq/store --json",
    ),
    "view": (
        "rmqstore view files /data/rocketmq/store",
        "rmqstore view commitlog /data/rocketmq/store --columns commitLogOffset,storeSize -n 5",
    ),
}
