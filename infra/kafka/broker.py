"""A Kafka broker on this machine, one process in KRaft mode, until Ctrl-C: `make server S=kafka`.

It listens on 127.0.0.1 alone: PLAINTEXT on --port and, where a port is given, SASL_PLAINTEXT on --sasl-port (PLAIN,
the one user of KAFKA_USER and KAFKA_PASSWORD) and SSL on --tls-port (--certificate: a PEM file with key and chain). Its
data are in --home, by default .lake/kafka, and stay there. Its jars are those of infra/kafka/jars.txt: `--fetch` puts
them into --jars, verified, and ends.

KRaft in one process: kafka.apache.org/43/documentation, "KRaft" and "Broker configs".
"""

from __future__ import annotations

import argparse
import base64
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from infra.server import KAFKA

LOGGING: Final = KAFKA.folder / "log4j2.properties"


def main() -> None:
    """Reads the command line, writes the settings, makes the storage if there is none, and becomes the broker."""
    parser = KAFKA.parser("A Kafka broker on this machine, until Ctrl-C.", port=9092)
    parser.add_argument("--controller-port", type=int, help="its own port (default: the next one)")
    parser.add_argument("--sasl-port", type=int, help="port of clients that give a user and a password")
    parser.add_argument("--tls-port", type=int, help="port of clients that speak TLS")
    parser.add_argument("--certificate", type=Path, help="PEM file with the key and the certificates of TLS")
    parser.add_argument("--memory", default="512m", help="most memory of its heap (default: 512m)")
    given = KAFKA.parsed(parser)
    given.controller_port = given.controller_port or given.port + 1
    given.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = given.home / "server.properties"
    settings.touch(mode=0o600)
    settings.write_text("".join(f"{name}={value}\n" for name, value in properties(given).items()))
    options = [f"-Dlog4j2.configurationFile={LOGGING}", f"-Dkafka.logs.dir={given.home}"]
    command = KAFKA.command(given, given.memory, options)
    if not (given.home / "data/meta.properties").is_file():
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        format_ = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(settings)]
        made = subprocess.run([*command, *format_], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"kafka: its storage could not be made: {made.stdout}{made.stderr}")
    KAFKA.become([*command, "kafka.Kafka", str(settings)], f"127.0.0.1:{given.port}, data in {given.home}")


def properties(given: argparse.Namespace) -> Mapping[str, object]:
    """The broker's settings: one replica of everything, loopback alone."""
    own = f"127.0.0.1:{given.controller_port}"
    listeners = {"PLAINTEXT": given.port, "SASL_PLAINTEXT": given.sasl_port, "SSL": given.tls_port}
    open_ = [f"{name}://127.0.0.1:{port}" for name, port in listeners.items() if port]
    said: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": own,
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join([*open_, f"CONTROLLER://{own}"]),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT," + ",".join(f"{name}:{name}" for name in listeners),
        "advertised.listeners": ",".join(open_),
        "log.dirs": given.home / "data",
        "num.partitions": 1,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.segment.delete.delay.ms": 100,
        "num.network.threads": 2,
        "num.io.threads": 2,
    }
    if given.sasl_port:
        user, password = os.environ["KAFKA_USER"], os.environ["KAFKA_PASSWORD"]
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        said |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_{user}="{password}";',
        }
    if given.tls_port:
        said |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": given.certificate.absolute()}
    return said


if __name__ == "__main__":
    main()
