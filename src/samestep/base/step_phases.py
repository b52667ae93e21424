"""Names the phases of a training step, as files and pages show them."""

DATA, TO_DEVICE, FORWARD, BACKWARD = "data", "to_device", "forward", "backward"
EXCHANGE, OPTIMIZER, OTHER = "exposed_sync", "optimizer", "other"

ALL = (DATA, TO_DEVICE, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER, OTHER)
"""All phases in order; `EXCHANGE` is communication that backward does not hide."""

OF_LOOP = (DATA, FORWARD, BACKWARD, EXCHANGE, OPTIMIZER)
"""The phases that the loop of a recipe measures."""


def phase_text(phase: str) -> str:
    """Return the name of a phase in a sentence or a table.

    >>> phase_text("exposed_sync"), phase_text("to_device")
    ('exposed communication', 'to device')
    """
    return "exposed communication" if phase == EXCHANGE else phase.replace("_", " ")
