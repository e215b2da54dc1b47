"""The `packidx` command; installed as the package `packidx_cli`."""

import os
import signal
import sys

_IS_PROGRAM = os.path.basename(sys.argv[0]) in ("packidx", "-m")

if _IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while modules load ends the program, as it ends others; `main` says something of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
