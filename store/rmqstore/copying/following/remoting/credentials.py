"""Signatures of requests, by which a broker with access control knows who asks.

Source: AclClientRPCHook.java, AclUtils.java, AclSigner.java, SessionCredentials.java.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Credentials:
    """The access key of a user and its secret, and a token where one is in use."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with those that prove who sends it."""
        all_fields = {**fields, "AccessKey": self.access_key}
        if self.security_token is not None:
            all_fields["SecurityToken"] = self.security_token
        ordered = sorted(all_fields, key=lambda name: name.encode("utf-16-be"))
        content = "".join(all_fields[name] for name in ordered).encode() + body
        digest = hmac.new(self.secret_key.encode(), content, hashlib.sha1).digest()
        return {**all_fields, "Signature": base64.b64encode(digest).decode()}
