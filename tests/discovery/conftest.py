import pytest

from shoal.discovery.discovery_settings import DiscoverySettings, choose_settings


@pytest.fixture
def settings(photos) -> DiscoverySettings:
    return choose_settings(config=photos.config)
