"""A curve over time, with so many points that it can be drawn, however long it is."""

from typing import Generic, TypeVar

MOST_POINTS = 240  # half a pixel of a chart's line each

Point = TypeVar("Point")


class Course(Generic[Point]):
    """Points evenly over the time: where there are too many, every second one goes, and the next
    come half as often.
    """

    def __init__(self, every_s: float) -> None:
        self._points: list[Point] = []
        self._last: list[Point] = []  # where it is not among the points
        self._every_s, self._due_s = every_s, 0.0

    @property
    def points(self) -> tuple[Point, ...]:
        """The first and the last one among them."""
        return (*self._points, *self._last)

    def add(self, seconds: float, point: Point) -> None:
        if seconds < self._due_s:
            self._last = [point]
            return
        self._last = []
        self._points.append(point)
        if len(self._points) >= MOST_POINTS:
            del self._points[1::2]
            self._every_s *= 2
        self._due_s = (seconds // self._every_s + 1) * self._every_s
