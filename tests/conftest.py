"""One profile for all property tests: repeatable, and without a time limit on noisy machines."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "dualform", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dualform")
