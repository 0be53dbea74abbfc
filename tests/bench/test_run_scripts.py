"""What the bench of the programs makes of predictions, and the page it writes; nothing is predicted
here.
"""

from bench import programs_page


def test_the_page_in_the_docs_is_the_one_of_the_results():
    assert programs_page.PAGE.read_text() == programs_page.whole_page()
