"""SQL: a statement is judged by what it answers on several databases, not by how it is written.

`spec` is the hidden answer; `verifier` compares what `worker`, a child process, ran: `jobs` on
an engine (`sqlite`, `duck`), and for references `plan`; rows travel as `cells` and are told
apart by `compare`. `specimens` prove it.
"""

from headrace.verify.kinds import Kind
from headrace.verify.sql.spec import SqlSpec
from headrace.verify.sql.specimens import specimens
from headrace.verify.sql.verifier import SqlAnswer

__all__ = ["KIND", "SqlAnswer", "SqlSpec"]

KIND = Kind(
    id=SqlAnswer.ref.id,
    version=SqlAnswer.ref.version,
    title="a SQL query or script, by what it answers on several SQLite or DuckDB databases",
    limits=(
        "Schemas without triggers and virtual tables; scripts that change rows, not tables; at "
        "most 10,000 rows and 4 MiB an answer; numbers inside lists and structs are compared "
        "exactly. In DuckDB a candidate may read the clock, and then does not answer twice alike."
    ),
    surfaces=SqlAnswer.surfaces,
    specimens=specimens,
)
