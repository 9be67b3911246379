"""Single changes of tables from elsewhere: each is found, refused, or of a field that is known for what it can hide.

``CLUSTERSIM_FOREIGN_CHANGES=2000 pytest tests/legality/timeline/test_foreign_adversary.py`` tries as many.
"""

from __future__ import annotations

import os
import random

from tests.effort import is_whole
from tests.legality.timeline.foreign_adversary import UNSEEN, changed, changes_of, verdict_on
from tests.legality.timeline.foreign_tables import tables

CHANGES = int(os.environ.get("CLUSTERSIM_FOREIGN_CHANGES", "200" if is_whole() else "50"))


def test_changed_cell_is_found_refused_or_known_to_hide() -> None:
    whole, draw = tables(), random.Random("foreign")
    assert verdict_on(whole) == "legal"
    every = [change for change in changes_of(whole, 20, draw) if changed(whole, change) != whole]
    assert {change.field for change in every} >= set(UNSEEN)
    for change in draw.sample(every, min(CHANGES, len(every))):
        what = verdict_on(changed(whole, change))
        assert what in ("found", "refused") or (what == "legal" and change.field in UNSEEN), change
