"""What a member of a cluster tells Prometheus of its part in it, looked up when somebody asks."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.dispatch.status import Backlog
from atlas_agents.dispatch.worker import Worker


class ClusterFigures(Collector):
    """Of one that works: what it has at hand. Of the one that leads: what all of them have before them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        cluster = self._cluster
        standing = cluster.standing
        yield _gauge("atlas_draining", "1 while it takes no more turns and is about to end", standing.draining)
        if cluster.worker is not None:
            yield _gauge("atlas_cluster_leads", "1 at the one that sees to jobs and lost workers", cluster.leads)
            yield _gauge("atlas_worker_capacity", "Turns that it has at hand at most", standing.capacity)
            yield from _of_worker(cluster.worker)
        if cluster.backlog is not None:
            yield from _of_leader(cluster.backlog)


def _of_worker(worker: Worker) -> Iterable[Metric]:
    yield _gauge("atlas_worker_runs", "Turns that it has at hand", worker.at_hand)
    yield _gauge("atlas_worker_heartbeat_age_seconds", "Since it could last say that it is well", worker.silent)
    yield _counter("atlas_worker_taken", "Turns that it has taken out of the queue", worker.taken)
    yield _counter("atlas_worker_finished", "Turns of those that have ended", worker.finished)
    yield _counter("atlas_worker_given_back", "Turns of those that were left to others", worker.given_back)


def _of_leader(backlog: Backlog) -> Iterable[Metric]:
    yield _gauge("atlas_cluster_queue_waiting", "Turns that wait for a worker, seen by the leader", backlog.waiting)
    yield _gauge("atlas_cluster_queue_taken", "Turns that workers have, seen by the leader", backlog.taken)
    yield _gauge("atlas_cluster_queue_lag_seconds", "How long the first turn has waited for a worker", backlog.lag)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value)
