"""The number formats of the checkpoint, as rounding of float tensors (values, not codes)."""
import torch
import torch.nn.functional as F


def e4m3(x):
    """Round to E4M3; |x| at most 448."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def e2m1(x):
    """Round to E2M1, ties to the even code; clamped to 6."""
    sign, a = torch.sign(x), x.abs().clamp_max(6.0)
    step = torch.where(a < 2, 0.5, 1.0) * torch.where(a < 4, 1.0, 2.0)
    return sign * torch.round(a / step) * step


def pow2_ceil(x):
    """Smallest power of two that is not below x (x > 0, normal), computed on the bits."""
    bits = x.float().contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def _groups(x, size):
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


@torch.no_grad()
def window_kv(x):
    """Window keys: E4M3 in groups of 32, power of two scale."""
    y = _groups(x, 32)
    s = pow2_ceil(y.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448))
    return (e4m3(y / s) * s).reshape(x.shape)


@torch.no_grad()
def row_kv(x):
    """Compressed rows: E2M1 in groups of 16, E4M3 scale."""
    y = _groups(x, 16)
    s = e4m3(y.abs().amax(-1, keepdim=True).clamp_min(6 * 2**-9) / 6)
    return (e2m1(y / s) * s).reshape(x.shape)


@torch.no_grad()
def index_kv(x):
    """Index keys and queries: E2M1 in groups of 32, power of two scale."""
    y = _groups(x, 32)
    s = pow2_ceil(y.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1 / 6))
    return (e2m1(y / s) * s).reshape(x.shape)


def straight_through(x, rounded):
    return x + (rounded - x).detach()


# ---- weights: codes and scales -----------------------------------------------------------------


def tile_scales(w):
    """One power of two per 32x32 tile, [ceil(out/32), ceil(in/32)]."""
    o, i = w.shape
    padded = F.pad(w.abs(), (0, -i % 32, 0, -o % 32))
    tiles = padded.unflatten(1, (-1, 32)).unflatten(0, (-1, 32)).amax((1, 3))
    return pow2_ceil(tiles.clamp_min(2.0**-100) * (1 / 448))


def fp8_tiles(w):
    """The rounded weight and its tile scales."""
    s = tile_scales(w)
    full = s.repeat_interleave(32, 0).repeat_interleave(32, 1)[: w.shape[0], : w.shape[1]]
    return e4m3(w / full) * full, s


def fp8_rows(w):
    """Engram tables: per row and 32 columns."""
    y = _groups(w, 32)
    s = pow2_ceil(y.abs().amax(-1, keepdim=True).clamp_min(2.0**-100) * (1 / 448))
    return (e4m3(y / s) * s).reshape(w.shape), s[..., 0]


def fp4_rows(w):
    """Experts: E2M1 per row and 32 inputs."""
    y = _groups(w, 32)
    s = pow2_ceil(y.abs().amax(-1, keepdim=True).clamp_min(2.0**-100) * (1 / 6))
    return (e2m1(y / s) * s).reshape(w.shape), s[..., 0]


def bf16(w):
    return w.to(torch.bfloat16).to(w.dtype)
