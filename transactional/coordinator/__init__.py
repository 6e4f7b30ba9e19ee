"""The checkpoint coordinator: it journals the decision to commit micro-batches, and then calls the sink.

`CheckpointCoordinator` is a plain object without threads. Every process that needs a coordinator builds one. The durable steps,
in order:

planning   P1 read the query's logs (the caller does this)      P2 load the journal
           P3 continue the newest run, or compare the store with the journal and claim a new run; guard the prefix
           P4 account for every micro-batch    P5 settle decided checkpoints  P6 keep or void prepared micro-batches
           P7 sweep lingering transactions; if a stop was requested and nothing is open, journal `stopped` and end
           P8 give the hooks their states      P9 fold the journal, return the plan of the tasks
commit     C1 load; the run must be ours       C2 if micro-batch N is already decided: repair, settle, return
           C3 if N is already prepared, all tasks must have discarded their rows
           C4 otherwise all tasks must have written their rows under this run
           C5 inspect the handles              C6 ask the hooks for their states
           C7 journal `decided` (or `prepared`; or `prepared` and `declined`)
           C8 commit the handles, in order     C9 when all rows are visible, journal `settled`        C10 sweep
abort      A1 load; the run must be ours, and N neither decided nor prepared        A2 journal `aborted`
           A3 sweep, which also finds the handles in the tasks' messages
ending     E1 P2 to P7, under a new run                         E2 C5 to C9, for everything that is prepared
           E3 journal `stopped`                E4 sweep

P3 is in `claim`, P4 to P9 are in `planning`, C3 to C9 and E2 in `decision`. P5, C2, C8 and C9 use `transactional.settlement`.
The steps of a rewind (R1 to R7) are in `transactional.rewind`.
"""

from transactional.coordinator.coordinator import CheckpointCoordinator
from transactional.coordinator.session import RunSettings

__all__ = ["CheckpointCoordinator", "RunSettings"]
