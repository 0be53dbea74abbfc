"""A curve over time has so many points that it can be drawn."""

import itertools

from brimful.measure.course import MOST_POINTS, Course


def test_a_course_has_some_hundred_points_over_the_whole_time_however_long_it_is():
    course = Course[int](1.0)
    for second in range(1, 10_001):
        course.add(float(second), second)
    times = course.points
    assert MOST_POINTS / 2 - 1 <= len(times) < MOST_POINTS
    assert (times[0], times[-1]) == (1, 10_000)
    gaps = {later - earlier for earlier, later in itertools.pairwise(times[1:-1])}
    assert max(gaps) <= 2 * min(gaps), "evenly"
