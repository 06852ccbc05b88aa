"""Lines of the story, and between them one line of progress."""

import shutil
import sys
import time


class Progress:
    """One line that is rewritten on a terminal; a plain line now and then elsewhere."""

    PLAIN_INTERVAL_S = 10

    def __init__(self, out=None):
        self._out = out or sys.stdout
        self._terminal = self._out.isatty()
        self._shown = False
        self._next_plain = time.monotonic() + self.PLAIN_INTERVAL_S

    def show(self, text):
        if self._terminal:
            # A line that wraps could not be taken back.
            width = shutil.get_terminal_size().columns - 3
            print(f"\r\033[K  {text[:max(0, width)]}", end="", file=self._out, flush=True)
            self._shown = True
        elif time.monotonic() >= self._next_plain:
            print(f"  {text}", file=self._out, flush=True)
            self._next_plain = time.monotonic() + self.PLAIN_INTERVAL_S

    def say(self, text=""):
        self.clear()
        print(text, file=self._out, flush=True)
        self._next_plain = time.monotonic() + self.PLAIN_INTERVAL_S

    def clear(self):
        if self._shown:
            print("\r\033[K", end="", file=self._out, flush=True)
            self._shown = False
