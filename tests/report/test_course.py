from swath.report.course import MOST, Course
from swath.report.text import sparkline


def course_of(values):
    course = Course()
    for value in values:
        course.add(value)
    return course


def test_a_short_course_has_the_bars_of_its_values():
    values = [3.0, float("nan"), 1.0, 4.0, float("inf"), 1.0, 5.0]
    assert course_of(values).bars(20) == sparkline(values, 20)


def test_a_long_course_takes_no_more_room_and_looks_the_same():
    values = [(i % 7 == 0) + i / 100 for i in range(50 * MOST)]
    course = course_of(values)
    assert course.bars(20) == sparkline(values, 20)
    assert sum(len(kept) for kept in vars(course).values() if isinstance(kept, list)) < 2 * MOST
