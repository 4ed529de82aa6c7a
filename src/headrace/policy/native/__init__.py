"""The decoder's inner loops in C, compiled on the machine they run on.

An optional layer: where no C compiler is found, `kernels()` says why and the engine takes the
general path. The compiled library is cached under a name that holds the source, the processor
and the compiler flags, and is only used after it has reproduced a product of torch's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.policy.cache import cache_root

__all__ = ["BLOCK", "Kernels", "Packed", "Unavailable", "kernels"]

BLOCK = 16
"""Positions in a block of the key-value cache."""

_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fPIC")
_COMPILE_SECONDS = 120
_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "hr_pack": (_POINTER, _LONG, _LONG, _INT, _POINTER),
    "hr_matmul": (_POINTER, _LONG, _LONG, _POINTER, _LONG, _INT, _POINTER, _INT, _POINTER),
    "hr_rmsnorm": (_POINTER, _LONG, _LONG, _POINTER, _FLOAT, _POINTER),
    "hr_silu_mul": (_POINTER, _LONG, _LONG, _POINTER),
    "hr_rotate_store": (
        *(_POINTER, _LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _POINTER),
        *(_FLOAT, _POINTER, _POINTER, _POINTER),
    ),
    "hr_attend": (
        *(_POINTER, _LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _POINTER),
        *(_POINTER, _FLOAT, _POINTER, _LONG, _LONG, _POINTER),
    ),
}


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why the kernels cannot be used here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight [n, k] in the kernels' layout, fp32 or bf16."""

    data: Tensor
    n: int
    k: int
    bf16: bool


class Kernels:
    """The kernels over contiguous CPU tensors; fp32 but for packed weights."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._library = library

    def pack(self, weight: Tensor, *, bf16: bool, into: Packed | None = None) -> Packed:
        """`weight` [n, k] (k even for bf16) packed, in the memory of `into` where given."""
        n, k = weight.shape
        if into is None:
            size = -(-n // BLOCK) * BLOCK * k
            data = torch.empty(size, dtype=torch.bfloat16 if bf16 else torch.float32)
            into = Packed(data, n, k, bf16)
        plain = weight.detach().float().contiguous()
        self._library.hr_pack(plain.data_ptr(), n, k, int(bf16), into.data.data_ptr())
        return into

    def matmul(
        self,
        a: Tensor,
        weight: Packed,
        out: Tensor,
        *,
        bias: Tensor | None = None,
        add: bool = False,
    ) -> None:
        """out [m, n] = a [m, k] x weight^T, plus `bias` [n], plus what is in `out` if `add`."""
        self._library.hr_matmul(
            a.data_ptr(),
            a.shape[0],
            weight.k,
            weight.data.data_ptr(),
            weight.n,
            int(weight.bf16),
            None if bias is None else bias.data_ptr(),
            int(add),
            out.data_ptr(),
        )

    def rmsnorm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """RMSNorm of the rows of x [m, d]."""
        self._library.hr_rmsnorm(
            x.data_ptr(), x.shape[0], x.shape[1], weight.data_ptr(), eps, out.data_ptr()
        )

    def silu_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """out [m, f] = silu(gate) * up of gate_up [m, 2 f]."""
        self._library.hr_silu_mul(gate_up.data_ptr(), out.shape[0], out.shape[1], out.data_ptr())

    def rotate_store(
        self,
        qkv: Tensor,
        shape: tuple[int, int, int],
        rotation: tuple[Tensor, Tensor],
        norms: tuple[Tensor | None, Tensor | None],
        eps: float,
        slots: Tensor,
        cache: tuple[Tensor, Tensor],
    ) -> None:
        """Rotate the queries of qkv [m, (heads + 2 kv) d] in place, store keys and values.

        `shape` is (heads, kv_heads, d); `rotation` cosine and sine [m, d]; `norms` the RMSNorm
        weights of queries and keys by head; `slots` [m] int64 block x 16 + offset.
        """
        query_norm, key_norm = norms
        self._library.hr_rotate_store(
            qkv.data_ptr(),
            qkv.shape[0],
            *shape,
            rotation[0].data_ptr(),
            rotation[1].data_ptr(),
            None if query_norm is None else query_norm.data_ptr(),
            None if key_norm is None else key_norm.data_ptr(),
            eps,
            slots.data_ptr(),
            cache[0].data_ptr(),
            cache[1].data_ptr(),
        )

    def attend(
        self,
        qkv: Tensor,
        shape: tuple[int, int, int],
        cache: tuple[Tensor, Tensor],
        table: Tensor,
        owner: Tensor,
        length: Tensor,
        scaling: float,
        scratch: Tensor,
        out: Tensor,
    ) -> None:
        """out [m, heads d]: token i over the first length[i] positions of table[owner[i]].

        `scratch` [lanes, >= 64 x ceil(longest / 16)] is working memory.
        """
        self._library.hr_attend(
            qkv.data_ptr(),
            qkv.shape[0],
            *shape,
            cache[0].data_ptr(),
            cache[1].data_ptr(),
            table.data_ptr(),
            table.shape[1],
            owner.data_ptr(),
            length.data_ptr(),
            scaling,
            scratch.data_ptr(),
            scratch.shape[1],
            scratch.shape[0],
            out.data_ptr(),
        )


@functools.cache
def kernels() -> Kernels | Unavailable:
    """The kernels for this machine, compiled at most once, or why there are none."""
    if platform.system() != "Linux":
        return Unavailable(f"not built for {platform.system()}")
    compiler = next(
        (found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None
    )
    if compiler is None:
        return Unavailable("no C compiler (cc, gcc or clang) was found")
    try:
        path = _compiled(compiler)
        loaded = Kernels(ctypes.CDLL(str(path)))
    except subprocess.TimeoutExpired:
        return Unavailable(f"the C compiler took longer than {_COMPILE_SECONDS} s")
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or [f"exit code {error.returncode}"]
        return Unavailable(f"the C compiler failed: {lines[0]}")
    except OSError as error:
        return Unavailable(f"the compiled kernels cannot be used: {error}")
    return loaded if _reproduces_torch(loaded) else Unavailable("the compiled kernels miscalculate")


def _compiled(compiler: str) -> Path:
    """The shared library for this source, processor and compiler, built if it is not there."""
    openmp = _openmp()
    identity = "\n".join([_SOURCE.read_text(), _processor(), compiler, *_FLAGS, *openmp])
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    library = cache_root() / "native" / f"kernels-{name}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / "kernels.so"
        unlinked = Path(scratch) / "kernels.o"
        for command in (
            [compiler, *_FLAGS, "-fopenmp", "-c", str(_SOURCE), "-o", str(unlinked)],
            [compiler, "-shared", str(unlinked), *openmp, "-lm", "-o", str(built)],
        ):
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_COMPILE_SECONDS
            )
        built.replace(library)
    return library


def _openmp() -> list[str]:
    """Link against torch's own OpenMP, so that both share one set of threads."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return [str(found[0])] if found else ["-fopenmp"]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "model name"))}))


def _reproduces_torch(found: Kernels) -> bool:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(7, 32, generator=generator)
    weight = torch.randn(40, 32, generator=generator)
    for bf16 in (False, True):
        out = torch.empty(7, 40)
        found.matmul(a, found.pack(weight, bf16=bf16), out)
        exact = weight.bfloat16().float() if bf16 else weight
        if not torch.allclose(out, a @ exact.T, rtol=1e-4, atol=1e-4):
            return False
    return True
