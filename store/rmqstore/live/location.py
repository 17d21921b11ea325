"""Where running brokers are found, and how they are talked to."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import environ
from typing import Final

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.json_text import one_value_each
from rmqstore.remoting import TIMEOUT_SECONDS, Address, Credentials, Endpoint
from rmqstore.storage.files.remote_location import RUNNING_BROKERS, boolean, made_absolute, number

_SCHEME: Final = f"{RUNNING_BROKERS}://"
_NAME_SERVER_PORT: Final = 9876
_SECRET_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - the name of a variable
_MOST_SECONDS: Final = 3600.0

# Every broker has this group from its start, so a read in its name enters none into its table, and
# no reset of offsets is taken from a group that others use.
# Source: SubscriptionGroupManager.java#init.
_GROUP: Final = "TOOLS_CONSUMER"

# How brokers are reached, in ``storage_options``.
LIVE_OPTIONS: Final = (
    "access_key", "secret_key", "security_token", "tls", "tls_ca", "tls_cert", "tls_key",
    "tls_any_host", "tls_any_certificate", "consumer_group", "timeout", "address_map",
)  # fmt: skip
_FILES: Final = frozenset({"tls_ca", "tls_cert", "tls_key"})
SECRETS_OF_SERVERS: Final = frozenset({"secret_key", "security_token"})
WHO_ASKS: Final = SECRETS_OF_SERVERS | {"access_key"}

# A broker sends records, and this is in the unit of the queue.
_COLUMNS_OF_FILES: Final = frozenset({"tagsCode"})


def require_served(asked: Iterable[str] = (), columns: Iterable[str] = ()) -> None:
    """Refuse what only the files of a store can answer.

    Args:
        asked: such arguments, as far as they were given.
        columns: all columns that are asked for.

    Raises:
        UnsupportedFeatureError: there is one.
    """
    names = [*asked, *(f"column {name}" for name in columns if name in _COLUMNS_OF_FILES)]
    if names:
        raise UnsupportedFeatureError(
            f"{', '.join(names)}: running brokers do not serve this; read the files of a store, "
            "or of a copy that `rmqstore follow` keeps"
        )


@dataclass(frozen=True, slots=True)
class LiveLocation:
    """The name servers of a cluster, and how its servers are talked to.

    Attributes:
        name_servers: any of them is asked.
        options: those of :data:`LIVE_OPTIONS` that are given. They may be secrets, so no text
            shows them.
    """

    name_servers: tuple[Address, ...]
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, object] | None = None) -> LiveLocation:
        """Return the location that a URI such as ``rocketmq://ns1:9876;ns2:9876`` names.

        Args:
            uri: name servers, separated by semicolons; a port that is left out is 9876.
            options: of :data:`LIVE_OPTIONS`.

        Raises:
            OptionError: it is no such URI, or an option is unknown or contradicts another.
        """
        uri = os.fspath(uri)
        rest = uri[len(_SCHEME) :].rstrip("/")
        if "@" in rest:  # what is before it may be a secret
            raise OptionError(
                "rocketmq://***: credentials do not belong in an address: give access_key and "
                "secret_key with `storage_options=`"
            )
        names = [name.strip() for name in rest.replace(",", ";").split(";")]
        if not uri.lower().startswith(_SCHEME) or not all(names) or "/" in rest:
            raise OptionError(
                f"path {uri!r}: name servers are given as rocketmq://HOST:9876, several of them "
                "with semicolons between"
            )
        given = {name: str(value) for name, value in (options or {}).items() if value is not None}
        for name in given:
            if name not in LIVE_OPTIONS:
                raise OptionError(
                    f"`storage_options`: unknown {name}; with running brokers there are "
                    f"{', '.join(LIVE_OPTIONS)}"
                )
        for name in given.keys() & _FILES:  # tasks run in folders of their own
            given[name] = made_absolute(given[name])
        if "access_key" in given and _SECRET_VARIABLE in environ:
            # Tasks on other hosts do not see the variable.
            given.setdefault("secret_key", environ[_SECRET_VARIABLE])
        location = cls(tuple(map(_address, names)), tuple(sorted(given.items())))
        location.endpoint(location.name_servers[0])  # refuses what contradicts itself
        return location

    def __str__(self) -> str:
        return _SCHEME + ";".join(map(str, self.name_servers))

    @property
    def consumer_group(self) -> str:
        """The group in whose name queues are read; no offset is committed."""
        return self._given.get("consumer_group", _GROUP)

    @property
    def has_credentials(self) -> bool:
        """Whether requests are signed with an access key."""
        return "access_key" in self._given

    @property
    def _given(self) -> dict[str, str]:
        return dict(self.options)

    def endpoint(self, address: Address) -> Endpoint:
        """Return where one server is reached, and how it is talked to.

        Args:
            address: as it was given, or as name servers give it.

        Raises:
            OptionError: an option is out of its domain, needs another one, or names a file that
                cannot be used.
        """
        given = self._given
        credentials = None
        if "access_key" in given:
            secret = given.get("secret_key")
            if not secret:
                raise OptionError(
                    "`storage_options`: access_key needs secret_key, or the environment variable "
                    f"{_SECRET_VARIABLE}"
                )
            token = given.get("security_token")
            credentials = Credentials(given["access_key"], secret, token)
        elif {"secret_key", "security_token"} & given.keys():
            raise OptionError("`storage_options`: secret_key and security_token need access_key")
        timeout = number(given, "timeout", TIMEOUT_SECONDS)
        if not 0 < timeout <= _MOST_SECONDS:
            raise OptionError(
                f"`storage_options`: timeout {timeout}: must be more than 0 and at most "
                f"{_MOST_SECONDS:.0f} seconds"
            )
        address = self._address_map().get(address, address)
        return Endpoint(address, credentials, self._tls(), timeout)

    def _address_map(self) -> dict[Address, Address]:
        """Return the addresses of servers that are not at those that they report, by the latter."""
        pairs = [pair for pair in self._given.get("address_map", "").split(",") if pair.strip()]
        try:
            parts = (pair.partition("=") for pair in pairs)  # the reported one first
            return one_value_each([(Address.parse(a), Address.parse(b)) for a, _, b in parts])
        except ValueError as err:  # OptionError too
            raise OptionError(
                f"`storage_options`: address_map: {err}. It has pairs such as "
                "172.17.0.2:10911=localhost:10911, with commas between: the address that a name "
                "server gives, and the one where the broker is reached"
            ) from err

    def _tls(self) -> ssl.SSLContext | None:
        """Return the settings of TLS, None for plain text."""
        given = self._given
        takes_any_host = boolean(given, "tls_any_host")
        takes_any_certificate = boolean(given, "tls_any_certificate")
        if not boolean(given, "tls"):
            if of_tls := [name for name in given if name.startswith("tls_")]:
                raise OptionError(f"`storage_options`: {', '.join(of_tls)} needs tls=true")
            return None
        if "tls_key" in given and "tls_cert" not in given:
            raise OptionError("`storage_options`: tls_key needs tls_cert")
        if takes_any_certificate and "tls_ca" in given:
            raise OptionError(
                "`storage_options`: with tls_any_certificate no certificate is compared with those "
                "of tls_ca: give one of the two"
            )
        try:
            context = ssl.create_default_context(cafile=given.get("tls_ca"))
            if "tls_cert" in given:
                context.load_cert_chain(given["tls_cert"], given.get("tls_key"))
        except (OSError, ssl.SSLError) as err:
            raise OptionError(
                f"`storage_options`: a certificate or key of TLS cannot be used: {err}"
            ) from err
        context.check_hostname = not (takes_any_host or takes_any_certificate)
        if takes_any_certificate:
            context.verify_mode = ssl.CERT_NONE
        return context


def _address(text: str) -> Address:
    if ":" not in text or text.endswith("]"):
        text = f"{text}:{_NAME_SERVER_PORT}"
    return Address.parse(text)
