"""Small cells, checks and plans for the tests of this folder."""

from harness.check import Check
from harness.errors import Location
from harness.matrix.model.cell import Cell, cell_id
from harness.matrix.model.definitions import Axis
from harness.matrix.model.versions import Scheme
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.keys.facets import FacetInputs
from harness.plan.tasks.host_capabilities import HostFacts
from harness.plan.tasks.planner import make_plan

HERE = Location("matrix.yaml", 1, 1)
AXES = {
    name: Axis(name=name, title=name, scheme=Scheme.PEP440, source="a test", package=name, where=HERE)
    for name in ("verl", "torch")
}


def cell(device="sim", **axes):
    values = {"verl": "0.9.1", "torch": "2.13.0", "device": device, **axes}
    return Cell(
        id=cell_id("", values), stack="", title="a cell", axes=values, provenance=dict.fromkeys(values, HERE)
    )


def check(name, tier=Tier.STATIC, facets=("versions",), **more):
    return Check(
        name=name,
        tier=tier,
        question=f"{name}?",
        facets=facets,
        run=lambda _context: Measured(measurements={}, evidence=Evidence.STATIC),
        judge=lambda measurements, _params: Judgement(status=Status(measurements.get("status", "pass"))),
        **more,
    )


INPUTS = FacetInputs(
    host_python="3.11",
    host_arch="x86_64",
    patches=lambda upstream, axes: [
        {
            "id": "p",
            "version_range": ">=0.9",
            "file": f"patches/{upstream}/p/0.9.patch",
            "digest": f"{upstream}{axes[upstream]}",
            "series": 1,
        }
    ],
    recipes={},
    axes=AXES,
)


def plan(cells, checks, host=None, inputs=INPUTS, code=None, without=None, code_record=None):
    return make_plan(
        cells,
        checks,
        profile="test",
        matrix_digest="m",
        inputs=inputs,
        code=code or {each.name: "code" for each in checks},
        host=host or HostFacts(),
        without=without,
        code_record=code_record,
    )
