"""What all tests share."""

import signal

# A run in the background of a shell without job control is started with Ctrl-C ignored, and so would be every process that the
# tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and so it is under nohup
