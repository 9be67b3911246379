"""What the communications of a step put on links, remembered by what their payloads depend on."""

from __future__ import annotations

from typing import Final

from clustersim.graph.batch import Features
from clustersim.graph.prices.counts import count_features
from clustersim.graph.prices.pricer import Pricer
from clustersim.replay.links.within_replica import PAYLOAD_COUNTS

MOST_USES: Final = 10_000
"""Communications that are remembered; they are cheap to make again."""

Counts = tuple[int, int, int, int]
"""Tokens, sequences with a token sampled or chunk, prefill tokens and decodes of a step: what payloads depend on."""


def payload_features(pricer: Pricer, counts: Counts) -> Features:
    """Return those features of a step that its payloads depend on."""
    features = count_features((*counts, 0, 0, 0), range(PAYLOAD_COUNTS))
    _, _, prefills, decodes = counts
    return features if prefills else pricer.padded(features, (decodes,))
