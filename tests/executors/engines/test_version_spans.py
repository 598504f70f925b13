"""Spans say of each token which version sampled it."""

import numpy as np

from turngym.executors.engines.version_spans import VersionSpans


def test_versions_by_hand():
    spans = VersionSpans(4)
    assert spans.versions(2).tolist() == [4, 4]
    spans.cut(2, 5)
    assert spans.versions(2).tolist() == [4, 4]  # it ended at the very token of the update
    assert spans.versions(3).tolist() == [4, 4, 5]
    spans.cut(2, 7)  # another update before the next token
    spans.cut(3, 8)
    versions = spans.versions(5)
    assert versions.tolist() == [4, 4, 7, 8, 8]
    assert versions.dtype == np.int32


def test_a_completion_without_tokens_has_no_versions():
    spans = VersionSpans(0)
    spans.cut(0, 1)
    assert spans.versions(0).tolist() == []
    assert spans.versions(2).tolist() == [1, 1]
