"""``docs/accuracy.md``, its picture and the README say what the recorded results say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustersim import catalog
from clustersim.accuracy import vocabulary
from clustersim.accuracy.document import END, START, document, picture, readme_block, with_block
from clustersim.accuracy.figures import figures_table
from clustersim.accuracy.result import read_results, written
from clustersim.accuracy.row import COLUMNS
from clustersim.accuracy.score import scoreboard
from clustersim.accuracy.vocabulary import MEANINGS, reference
from tests.architecture.documents import ROOT

GUIDE = "docs/guide/accuracy.md"


@pytest.fixture(scope="module")
def board():
    """Return the scores of what is recorded: the measured figures, which are others', are not part of it."""
    results = read_results(catalog.path_of("scenarios/accuracy", "results", ".csv"))
    return scoreboard([replace(result, given=None) for result in results])


RESULTS = "scenarios/accuracy/results.csv"
FIGURES = "scenarios/accuracy/figures.csv"


@pytest.mark.parametrize("name", [RESULTS, FIGURES, "README.md", "docs/accuracy.md", "docs/accuracy.svg", GUIDE])
def test_document_is_up_to_date(board, name, request):
    path = ROOT / name
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    made = {
        RESULTS: lambda: written(board.results),
        FIGURES: lambda: figures_table(board.results),
        "README.md": lambda: with_block(text, readme_block(board)),
        "docs/accuracy.md": lambda: document(board),
        "docs/accuracy.svg": lambda: picture(board),
        GUIDE: lambda: with_block(text, reference(), vocabulary.START, vocabulary.END),
    }[name]()
    if made != text and request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(made, encoding="utf-8")
        pytest.fail(f"{name}: rewrote what it says of accuracy; look at what moved, and run again")
    assert made == text, "out of date: pytest tests/architecture --update-golden"


def test_readme_has_a_place_for_the_summary(board):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count(START) == text.count(END) == 1
    assert with_block(text, "x").count("x") == text.count("x") - readme_block(board).count("x") + 1


def test_the_guide_has_a_place_for_the_words_of_a_table():
    text = (ROOT / GUIDE).read_text(encoding="utf-8")
    assert text.count(vocabulary.START) == text.count(vocabulary.END) == 1
    assert tuple(MEANINGS) == COLUMNS
