"""The checkpoint coordinator: what happened goes in, the journal decides, the sink is called.

A plain object without threads, created again in every process that needs it. The durable steps, in order:

planning   P1 read the query's logs (caller)   P2 load the journal   P3 take the run; or ask the store for what the
           journal does not know, and claim; guard the prefix
           P4 account for every batch          P5 settle decisions   P6 keep or void prepared batches
           P7 sweep lingering transactions; `stopped`, and no further, if the run was asked to stop and nothing is open
           P8 give the hooks their states      P9 fold, return the mode
commit     C1 load, the run must be ours       C2 decided already: repair, settle, return
           C3 prepared already: all drained    C4 all written by this run     C5 the look at the handles
           C6 ask the hooks                    C7 `decided` (or `prepared`; or `prepared` and `declined`)
           C8 commit the handles, in order     C9 all visible: `settled`      C10 sweep
abort      A1 load, the run must be ours, N neither decided nor prepared      A2 `aborted`
           A3 sweep, which also finds the handles of the messages
ending     E1 P2 to P7 under a run of its own  E2 C5 to C9 over what is prepared
           E3 `stopped`                        E4 sweep

P3 is in `claim`, P4 to P9 in `planning`, C3 to C9 and E2 in `decision`; P5, C2, C8 and C9 are `transactional.settlement`'s, and
going back (R1 to R7) is `transactional.rewind`'s.
"""

from transactional.coordinator.coordinator import CheckpointCoordinator
from transactional.coordinator.session import RunSettings

__all__ = ["CheckpointCoordinator", "RunSettings"]
