"""What `--json FILE` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_sac.atomic import write_file
from edge_sac.errors import Refused


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write `record` to `path`, whole or not at all. Raises Refused where it cannot be written."""
    try:
        write_file(path, (json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise Refused(f"cannot write {path}: {error}; give a file in a writable folder") from error
