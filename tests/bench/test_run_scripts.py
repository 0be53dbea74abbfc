"""What the bench of the programs makes of predictions, and the page it writes; nothing is predicted
here.
"""

from bench import programs_page


def test_the_pages_in_the_docs_are_those_of_the_results():
    for path, text in programs_page.pages().items():
        assert path.read_text() == text
