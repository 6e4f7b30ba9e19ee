"""Threads that need kafka-python for the first time, at about the same moment, all get it whole."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading, time
sys.setswitchinterval(1e-6)
from connector.kafka.client import security
from connector.kafka.client.connection import KafkaConnection
from connector.kafka.client.config import ClientConfig
from connector.kafka.client.errors import error_name
from transactional.errors import StoreError

begin, failed = threading.Barrier(8), []

def first(number):
    begin.wait()
    time.sleep(number * 0.004)  # while others are in the middle of it
    try:
        if number % 4 == 1:
            error_name(3)
        elif number % 4 == 3:
            security._provider(None)
        else:
            KafkaConnection(ClientConfig("test", {"bootstrap.servers": "127.0.0.1:1"}))
    except StoreError:
        pass  # nobody is there
    except BaseException as problem:
        failed.append(repr(problem))

threads = [threading.Thread(target=first, args=(number,), daemon=True) for number in range(8)]
for thread in threads:
    thread.start()
for number, thread in enumerate(threads):
    if number % 2:
        thread.join()
time.sleep(1.0)  # the connections wait for a broker now, or have failed
sys.exit("; ".join(failed) or 0)
"""


def test_threads_that_import_kafka_python_at_once_get_it_whole() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
