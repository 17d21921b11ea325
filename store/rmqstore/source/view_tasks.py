"""The tasks of a view of stores."""

from __future__ import annotations

from contextlib import ExitStack

from rmqstore.read.split import Limits
from rmqstore.read.store_parts import open_ref
from rmqstore.read.views.catalogue import (
    ClusterPart,
    plan_view,
    require_group_names,
    topics_of_view,
)
from rmqstore.read.views.schema import OF_CLUSTER, ViewSpec
from rmqstore.source.store_source import StoreSource, plan_each
from rmqstore.source.tasks import StoreTask


def view_tasks(source: StoreSource, spec: ViewSpec, limits: Limits) -> list[StoreTask]:
    """Return the tasks of a view of all stores of a source, one store after the other.

    Args:
        source: the stores.
        spec: the view that is asked for.
        limits: those of all tasks together.

    Raises:
        OptionError: no store has a topic, a queue or a consumer group that is named; also as
            ``StoreSource.of_each_broker``.
        UnsupportedFeatureError: a store cannot show the view.
    """
    is_of_cluster = spec.view in OF_CLUSTER
    stores = source.stores if is_of_cluster else source.of_each_broker()
    if spec.names_groups:
        with ExitStack() as stack:
            require_group_names([stack.enter_context(open_ref(ref)) for ref in stores], spec)
    if limits.min_partitions:
        limits = limits._replace(min_partitions=-(-limits.min_partitions // len(stores)))
    tasks = plan_each(
        stores,
        spec.named,
        lambda store: topics_of_view(store, spec),
        lambda store: [] if is_of_cluster else plan_view(store, spec, limits),
    )
    return [StoreTask(ClusterPart(stores[1:]), stores[0])] if is_of_cluster else tasks
