"""Questions that are not answered, and why."""

from dualform.errors import DualformError


class Refused(DualformError):
    """Said no to, with HTTP's status for it; `job` is what has to be done first, should that be the reason."""

    def __init__(self, reason: str, status: int = 422, job: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.job = status, job
