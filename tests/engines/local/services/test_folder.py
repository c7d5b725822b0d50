from __future__ import annotations

import pytest

from timonel.engines import ServiceSpec
from timonel.engines.local.services.folder import ServiceRequest
from timonel.errors import SpecError


def spec(revision: int, module: str = "m") -> ServiceSpec:
    return ServiceSpec(name="web", revision=revision, module=module)


def test_contents_of_earlier_revisions_are_remembered() -> None:
    request = ServiceRequest.first(spec(1))
    for revision in range(2, 100):
        request = request.applied(spec(revision))
    with pytest.raises(SpecError, match="revision 1 of web was applied with other contents"):
        request.applied(spec(1, "other"))
    again = ServiceRequest.model_validate_json(request.model_dump_json()).applied(spec(1))
    assert again.spec == spec(1)
    for revision in range(100, 150):
        again = again.applied(spec(revision))
    assert len(again.templates) == 100
    assert 1 in again.templates, "the last applied ones are kept"
    assert 2 not in again.templates
