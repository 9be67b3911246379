"""All features together: both replays agree, audits find nothing, and every request is accounted for."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.laws.accounts import account_for
from tests.laws.everything import everything

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(everything())
def test_whatever_happens_replays_agree_and_no_request_is_lost_silently(document: dict[str, Any]) -> None:
    account_for(document)
