"""Views of several stores together, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from rmqstore.read.views.cluster.assignments import read_assignments
from rmqstore.read.views.cluster.routes import read_routes
from rmqstore.read.views.cluster.stores import read_stores
from rmqstore.read.views.schema import ViewSpec
from rmqstore.read.views.source import ViewSource

_VIEWS: Final[dict[str, Callable[[Sequence[ViewSource], ViewSpec], Iterator[pa.RecordBatch]]]] = {
    "stores": read_stores,
    "routes": read_routes,
    "assignments": read_assignments,
}


def read_cluster_view(sources: Sequence[ViewSource], spec: ViewSpec) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a view of several stores together."""
    return _VIEWS[spec.view](sources, spec)
