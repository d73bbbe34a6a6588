"""The bed itself: plain runtimes, and what ENXIO and EPERM say."""

import json

from tests import fakenode
from tests.real.bed import Bed


def test_enxio_is_allowed_and_eperm_is_denied(bed: Bed) -> None:
    major = fakenode.build(bed.directory / "plain", "seed", avoid=fakenode.real_majors()).caps_major
    bundle = bed.bundle([f"c:{major}:2:r", f"c:{major}:2:w", f"c:{major}:3:r", "/dev/null:rw", "/dev/none:r"])
    config = json.loads((bundle / "config.json").read_text())
    rule = {"allow": True, "type": "c", "major": major, "minor": 2, "access": "r"}
    config["linux"]["resources"]["devices"].append(rule)
    (bundle / "config.json").write_text(json.dumps(config))

    ran = bed.run(bundle)

    assert (ran.code, ran.err) == (0, "")
    assert ran.opens == {
        f"c:{major}:2:r": "ENXIO",
        f"c:{major}:2:w": "EPERM",
        f"c:{major}:3:r": "EPERM",
        "/dev/null:rw": "open",
        "/dev/none:r": "ENOENT",
    }
