"""Claims about broken log directories beside Kafka's answers, which judge/kafka.py recorded."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from judge.kafka import CORPUS, Case, broken, claims, make

ANSWERS = json.loads(lzma.decompress(CORPUS.read_bytes()))


@pytest.mark.parametrize("text", ANSWERS)
def test_what_kafka_answered(text: str, tmp_path: Path) -> None:
    asked = make(Case.parse(text), tmp_path / "logs")
    assert broken(claims(tmp_path / "logs", asked), ANSWERS[text]) == {}
