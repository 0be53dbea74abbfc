"""The live view of `monitor`, drawn by textual (the extra `monitor`)."""

from collections.abc import Callable

from brimful.errors import BrimfulError, UsageError
from brimful.show.monitor_sections import draw
from brimful.values import Status

try:
    from textual.app import App, ComposeResult
    from textual.containers import VerticalScroll
    from textual.widgets import Footer, Static
except ImportError as error:
    raise UsageError(
        "the live view needs textual, which is not installed here",
        "--once, --json and --export do without it",
        "install it:\npip install 'brimful[monitor]'",
    ) from error


class MonitorApp(App[Exception]):
    """Shows what `read` gives, and reads anew every `every_s` seconds. What it raises ends the app,
    which returns it."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [("q", "quit", "Quit"), ("space", "pause", "Pause or go on")]  # noqa: RUF012

    def __init__(self, read: Callable[[], Status], every_s: float) -> None:
        super().__init__(ansi_color=True)
        self._read, self._every_s = read, every_s
        self._status: Status | None = None
        self._paused = False

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(id="status"))
        yield Footer()

    def on_mount(self) -> None:
        self._look()
        self.set_interval(self._every_s, self._look)

    def on_resize(self) -> None:
        self._show()

    def action_pause(self) -> None:
        self._paused = not self._paused

    def _look(self) -> None:
        """In a thread: reading the memory of many processes takes a moment."""
        if not self._paused:
            self.run_worker(self._read_and_show, thread=True, exclusive=True)

    def _read_and_show(self) -> None:
        try:
            self._status = self._read()
        except (BrimfulError, OSError) as error:
            self.call_from_thread(self.exit, error)
        else:
            self.call_from_thread(self._show)

    def _show(self) -> None:
        if self._status is not None:
            place = self.query_one("#status", Static)
            place.update(draw(self._status, self.size.width - 2))  # and the scroll bar
