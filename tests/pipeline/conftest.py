"""The fixtures of the broker's tests."""

from broker_support import broker, hand, opened, url, worker
from postgres_support import postgres_url

__all__ = ["broker", "hand", "opened", "postgres_url", "url", "worker"]
