"""Started by every Python process of a captured job; see memtracker_sidecar.capture.

Python runs one `sitecustomize`. The environment's own one, if there is one, is run from here.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_environments_own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _start() -> None:
    package = os.environ.get("MEMTRACKER_CAPTURE_PACKAGE")
    if package is None or "MEMTRACKER_CAPTURE" not in os.environ:
        return
    # Last: nothing that the job imports may be found here first.
    sys.path.append(package)
    from memtracker_sidecar.capture import runner

    runner.start(os.environ["MEMTRACKER_CAPTURE"])


try:
    _run_the_environments_own()
finally:
    try:
        _start()
    except Exception as problem:  # noqa: BLE001 - the job must start whatever happens here
        sys.stderr.write(
            f"memtracker: this process is not captured: {type(problem).__name__}: {problem}\n"
        )
