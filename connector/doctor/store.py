"""The doctor's checks of a checkpoint location's store. The checks write to the store in the same way as a query."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from connector.doctor.finding import failed
from connector.location.location import CheckpointLocation, nearest
from transactional.errors import TwoPhaseCommitError
from transactional.finding import Finding, good, problem, warning

FOLDER: Final = ".barrier-doctor"
"""The beginning of the name of the temporary folder that the check creates in the location, and removes at the end."""

SKEW_SECONDS: Final = 5.0


def check_store(location: CheckpointLocation) -> Iterator[Finding]:
    """Check that the store refuses to create a file twice.

    On a file system, also check that the store's clock agrees with this machine's. If the location's folder does not
    exist, use the nearest existing parent folder, which is on the same disk.
    """
    if location.is_local:
        location = CheckpointLocation(nearest(location.path))
    folder = f"{FOLDER}-{uuid.uuid4().hex[:8]}"
    try:
        store = location.files.journal_store(folder)
        before = time.time()
        first, second = store.create("1.json", b"{}"), store.create("1.json", b"{}")
        taken = time.time() - before
        if first and not second:
            yield good("store", f"{location.path} creates files exclusively, each in {taken / 2 * 1000:.0f} ms")
        else:
            yield problem(
                "store",
                f"{location.path} can't create a file exclusively, so it can't prevent two drivers from running the query at "
                "the same time.",
                "Use a local disk, an NFS mount with hard links, HDFS, or an object store with conditional puts.",
                "NO_EXCLUSIVE_CREATE",
            )
        if location.is_local:
            yield _clock(os.path.getmtime(os.path.join(location.path, folder, "1.json")) - before)
    except TwoPhaseCommitError as error:
        yield failed(error)
    except OSError as error:
        yield problem(
            "store",
            f"{location.path} can't be written: {error}",
            "Check the path and its rights.",
            "LOCATION_UNREADABLE",
        )
    finally:
        with suppress(OSError, TwoPhaseCommitError):
            location.files.remove(folder)


def _clock(ahead: float) -> Finding:
    if abs(ahead) < SKEW_SECONDS:
        return good("clock", "the store's clock agrees with this machine's clock")
    return warning(
        "clock",
        f"The store's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's clock, so times in "
        "the journal and in reports will not match.",
        "Synchronize both clocks with NTP.",
    )
