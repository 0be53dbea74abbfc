"""What a person should know."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """A finding of audit, or a warning: what was seen, what it means, what to do."""

    code: str
    problem: str
    explanation: str
    suggestion: str
