"""What of a replay is on the disk, and the order that keeps it so: rows first, then the index that counts on them.

What a power cut leaves. Every page holds one of the states it had since the last sync that ended, each page another. A
row crosses pages and is written while the system copies them, so a row younger than that sync may be old, new, torn or
half there; a row older than it is whole, as rows are never changed. So:

1. A row carries a check over its bytes and its absolute number (`replay_row.check_of`). What passes is whole, and is
   not what an earlier lap left in its place.
2. `commit` notes how many rows there are, syncs, only then writes the index - which says that many - and syncs again.
   Whichever state of the index a cut leaves, the rows it counts were on the disk before it was written: an index ahead
   of its rows would count transitions that are not there.
3. The index has two records, written in turn, so one of them is whole.
4. Row W + slots takes the place of row W. It is written only once the index on the disk counts W: else the row after
   the last counted one, where recovery begins, might be gone while later rows stand.

Recovery (`replay_ring`) takes the newest whole record, W. From row W on rows are taken while they pass their check,
up to the first that does not: a transition is never taken without the one before it. Everything else in the ring must
pass as the row of the lap before, or is wiped. This is on the disk before the first new row is written; else a later
cut could bring wiped rows back behind new ones, as whole rows with the right numbers.

A killed process leaves all its writes, in order, so the same recovery finds every row it completed, however long ago
the last commit was. No row was half written before the one after the last completed.

`commit` begins every SYNC_PERIOD in a thread of its own, since a sync may take a second on an SD card, during which the
caller goes on adding. What was added a period and two syncs ago is therefore safe: a second, where a sync takes less
than a quarter of it. Once a sync has failed the system may have dropped the pages it could not write, and the next one
would succeed without them: the first failure is for good, and every later call raises it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from edge_sac.errors import ReplayError
from edge_sac.replay_disk import ReplayDisk
from edge_sac.replay_header import Index

SYNC_PERIOD = 0.5
"""[s] Between the end of a commit and the next: half of the second that is promised, the other half is the syncs'."""
CLOSE_DEADLINE = 60.0
"""[s] How long closing waits for a sync that is under way."""
_WITHOUT_END = 2**63


class Journal:
    """The commits of one replay, whose rows and transitions so far `head` returns; each at most SYNC_PERIOD apart."""

    def __init__(
        self, disk: ReplayDisk, path: Path | None, index: Index, slots: int, head: Callable[[], tuple[int, int]]
    ) -> None:
        self._disk, self._path, self._slots, self._head = disk, path, slots, head
        self._index = index
        self.limit = index.written + slots if path else _WITHOUT_END
        """The first row that may not be written before the next commit."""
        self.failure: OSError | None = None
        self._told = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay journal", daemon=True)

    def start(self) -> None:
        """Begin to commit in the background, where there is a disk."""
        if self._path is not None:
            self._thread.start()

    def commit(self) -> None:
        """Bring every row written so far to the disk, then the index. Raises ReplayError when the disk fails."""
        if self._path is None:
            return
        with self._lock:
            self.check()
            written, added = self._head()
            if written == self._index.written:
                return
            index = Index(self._index.turn + 1, written, added)
            try:
                self._disk.sync()
                self._disk.write(index.at, index.pack())
                self._disk.sync()
            except OSError as error:
                self.failure = error
                self.check()
            self._index = index
            self.limit = written + self._slots

    def check(self) -> None:
        """Raise ReplayError when a commit has failed, in this call or in the background before it."""
        if self.failure is not None:
            self._told = True
            raise ReplayError(
                f"{self._path}: the disk failed to sync ({self.failure}); transitions since the last good sync may be "
                "lost: look after the disk, then resume"
            ) from self.failure

    def close(self) -> None:
        """Commit for the last time. Raises ReplayError for a failure not raised before, or past CLOSE_DEADLINE."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_DEADLINE)
            if self._thread.is_alive():
                raise ReplayError(f"{self._path}: a sync of the disk has not come to its end for {CLOSE_DEADLINE:g} s")
        if self.failure is None or not self._told:
            self.commit()

    def _run(self) -> None:
        while not self._closing.wait(SYNC_PERIOD):
            try:
                self.commit()
            except ReplayError:
                # `failure` holds it, for the caller's next call.
                self._told = False
                return
