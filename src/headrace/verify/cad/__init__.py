"""CAD: a script is judged by the solid it makes, measured on our side.

`spec` is the hidden answer; `verifier` runs the script in a sandbox (a Python one with
`sandboxed` as its module `cad`) and scores what `worker`, a child process, measured: it reads
`meshes` and `tree`s and knows how to `measure` them. `specimens` prove it.
"""

from headrace.verify.cad.spec import CadSpec
from headrace.verify.cad.specimens import API, specimens
from headrace.verify.cad.verifier import CadMesh
from headrace.verify.kinds import Kind

__all__ = ["API", "KIND", "CadMesh", "CadSpec"]

KIND = Kind(
    id=CadMesh.ref.id,
    version=CadMesh.ref.version,
    title="a part made by a CAD script (Python or OpenSCAD), by its geometry",
    limits=(
        "Needs the extra cad; OpenSCAD scripts need the program in the sandbox. At most 200,000 "
        "triangles and 8 MiB a mesh; a solid that crosses itself is measured as its facets say; "
        "distances between surfaces are sampled, so a detail on less than 1 % of the surface "
        "shows in volume, holes and dimensions only."
    ),
    surfaces=CadMesh.surfaces,
    specimens=specimens,
)
