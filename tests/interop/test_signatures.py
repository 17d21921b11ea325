"""Signed requests are those that RocketMQ's own client would send."""

from __future__ import annotations

import random
from typing import Any

import pytest

from interop.rocketmq import RocketMQ
from rmqstore.remoting import Credentials

# Java orders names by UTF-16, where the last of these comes before the one before it.
LETTERS = "abcXYZ019_-.=&\u00e4\u0416\u4e2d\uff5e\U0001f600"


def words(dice: random.Random, low: int, high: int) -> str:
    return "".join(dice.choices(LETTERS, k=dice.randint(low, high)))


def signed_by_rocketmq(
    real: RocketMQ, asker: Credentials, fields: dict[str, str], body: bytes | None
) -> dict[str, str]:
    common = real.rocketmq.acl.common
    arguments = [asker.access_key, asker.secret_key]
    if asker.security_token is not None:
        arguments.append(asker.security_token)
    hook = common.AclClientRPCHook(common.SessionCredentials(*arguments))
    request = real.rocketmq.remoting.protocol.RemotingCommand.createRequestCommand(21, None)
    given = real.java.util.HashMap()
    for name, value in fields.items():
        given.put(name, value)
    request.setExtFields(given)
    request.setBody(body)
    hook.doBeforeRequest("127.0.0.1:10911", request)
    sent: Any = request.getExtFields()
    return dict(sent)


@pytest.mark.interop
@pytest.mark.parametrize("seed", range(4))
def test_a_request_is_signed_as_by_its_own_client(seed: int, rocketmq: RocketMQ) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        token = words(dice, 1, 30) if dice.random() < 0.5 else None
        asker = Credentials(words(dice, 1, 20), words(dice, 1, 40), token)
        fields = {words(dice, 1, 8): words(dice, 0, 30) for _ in range(dice.randrange(6))}
        if dice.random() < 0.2:
            fields["AccessKey"] = "of another"
        body = dice.choice([None, b"", dice.randbytes(dice.randrange(1, 2000))])
        expected = signed_by_rocketmq(rocketmq, asker, fields, body)
        assert asker.signed(fields, body or b"") == expected
