"""A cluster as companies run it: TLS, log-ins by every mechanism, and no right that was not granted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from integration.broker import Cluster, Listener
from integration.certificates import Authority
from integration.driver_process import wait_until

__all__ = ["PASSWORD", "Right", "SecuredCluster", "grant", "revoke"]

Right = tuple[str, str, str]
"""Kind and name of what it is about (``*`` at the end: whatever begins so), and the operation."""

PASSWORD = "korrekt-Pferd-7319"
"""Of every user; nothing else holds this text."""

_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class SecuredCluster:
    """Who comes to `Cluster.bootstrap_servers` may do everything: that is for the tests' own looks.

    Listeners: ``SECURE`` (SASL_SSL, every mechanism), ``MUTUAL`` (SSL, client certificates), ``EXPIRED`` (SSL, its
    certificate has expired), ``OTHER`` (SSL, its certificate is for another address).
    """

    cluster: Cluster
    authority: Authority  # Has signed all certificates.

    @classmethod
    def make(cls, folder: Path, nodes: int) -> SecuredCluster:
        """One that is not started yet. Super users: ``admin`` by any mechanism, and the client certificate ``admin``."""
        authority = Authority(folder)
        own = authority.issue("broker")
        expired = authority.issue("expired", days=(-20, -1))
        other = authority.issue("other", address="127.0.0.9")
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}

        def shows(path: Path) -> dict[str, str]:
            return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}

        scram = f"{_MODULES}.scram.ScramLoginModule required;"
        logins = {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "plain.sasl.jaas.config": f'{_MODULES}.plain.PlainLoginModule required user_admin="{PASSWORD}";',
            "scram-sha-256.sasl.jaas.config": scram,
            "scram-sha-512.sasl.jaas.config": scram,
            # The broker believes unsigned tokens.
            "oauthbearer.sasl.jaas.config": (
                f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
        }
        cluster = Cluster(
            nodes,
            {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:admin;User:CN=admin",
            },
            listeners={
                "SECURE": Listener("SASL_SSL", {**shows(own.both), **logins}),
                "MUTUAL": Listener("SSL", {**shows(own.both), **trust, "ssl.client.auth": "required"}),
                "EXPIRED": Listener("SSL", shows(expired.both)),
                "OTHER": Listener("SSL", shows(other.both)),
            },
        )
        return cls(cluster, authority)

    def options(self, user: str, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, str]:
        """What both formats need to come as this user, by a password."""
        return {
            **self.tls("SECURE"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.username": user,
            "kafka.sasl.password": password,
        }

    def tls(self, listener: str) -> dict[str, str]:
        """What both formats need to come to this listener, but for a name."""
        return {
            "kafka.bootstrap.servers": self.cluster.servers(listener),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.ca.location": str(self.authority.certificate),
        }

    def user(self, name: str, rights: Iterable[Right]) -> dict[str, str]:
        """Options of a new user who has these rights and no others."""
        self.cluster.add_scram_user(name, PASSWORD)
        grant(self.cluster, name, rights)
        return self.options(name)


def grant(cluster: Cluster, user: str, rights: Iterable[Right]) -> None:
    """Give a user these rights, and wait until the brokers tell of all the user's rights."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    bindings = [_binding(user, right) for right in rights]
    for answer in admin.create_acls(bindings).values() if bindings else ():
        answer.result(30)
    _wait_for(cluster, user, len(bindings))


def revoke(cluster: Cluster, user: str) -> None:
    """Take all rights from a user."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for answer in admin.delete_acls([_all_of(user)]).values():
        answer.result(30)
    _wait_for(cluster, user, 0)


def _wait_for(cluster: Cluster, user: str, count: int) -> None:
    # The controller grants, each broker hears of it.
    for server in cluster.bootstrap_servers.split(","):
        admin = AdminClient({"bootstrap.servers": server})
        wait_until(lambda: len(admin.describe_acls(_all_of(user)).result(30)) == count, f"rights of {user}")  # noqa: B023


def _all_of(user: str) -> Any:
    anything: Any = None
    kinds = ResourceType.ANY, anything, ResourcePatternType.ANY
    return AclBindingFilter(*kinds, f"User:{user}", anything, AclOperation.ANY, AclPermissionType.ANY)


def _binding(user: str, right: Right) -> Any:
    kind, name, operation = right
    pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
    return AclBinding(
        ResourceType[kind.upper()],
        name.removesuffix("*"),
        pattern,
        f"User:{user}",
        "*",
        AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )
