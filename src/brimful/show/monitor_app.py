"""The live view of `monitor`, drawn by textual (the extra `monitor`)."""

from collections.abc import Callable

from brimful.errors import BrimfulError, UsageError
from brimful.show.monitor_sections import draw
from brimful.values import Status

try:
    from textual import work
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.containers import VerticalScroll
    from textual.widgets import Footer, Static
except ImportError as error:
    raise UsageError(
        "the live view needs textual, which is not installed here",
        "--once and --json do without it",
        "install it:\npip install 'brimful[monitor]'",
    ) from error


class MonitorApp(App[Exception]):
    """Shows what `read` gives, anew every `every_s` seconds. What it raises ends the app, which
    returns it."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012 (textual declares it)
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, read: Callable[[], Status], every_s: float) -> None:
        super().__init__(ansi_color=True)
        self._read, self._every_s = read, every_s

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static())
        yield Footer()

    def on_mount(self) -> None:
        self.look()
        self.set_interval(self._every_s, self.look)

    @work(thread=True, exclusive=True)  # reading the memory of many processes takes a moment
    def look(self) -> None:
        try:
            status = self._read()
        except (BrimfulError, OSError) as error:
            self.call_from_thread(self.exit, error)
        else:
            screen = draw(status, self.size.width - 2)  # the scroll bar has two columns
            self.call_from_thread(self.query_one(Static).update, screen)
