"""Logarithm and power of Java's StrictMath, which Spark calls: the last bit may differ from that of the C library.

Source: the algorithms e_log.c and e_pow.c of fdlibm 5.3, which StrictMath specifies; names are theirs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import reduce
from typing import Final

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LG_ODD: Final = (6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01, 1.479819860511658591e-01)
LG_EVEN: Final = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
LG2, LG2_HIGH, LG2_LOW = 6.93147180559945286227e-01, 6.93147182464599609375e-01, -1.90465429995776804525e-09
L: Final = (
    *(5.99999999999994648725e-01, 4.28571428578550184252e-01, 3.33333329818377432918e-01),
    *(2.72728123808534006489e-01, 2.30660745775561754067e-01, 2.06975017800338417784e-01),
)
P: Final = (
    *(1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05),
    *(-1.65339022054652515390e-06, 4.13813679705723846039e-08),
)
DP_HIGH, DP_LOW = 5.84962487220764160156e-01, 1.35003920212974897128e-08
CP, CP_HIGH, CP_LOW = 9.61796693925975554329e-01, 9.61796700954437255859e-01, -7.02846165095275826516e-09
OVT: Final = 8.0085662595372944372e-17


def ln(x: float) -> float:
    """Return the natural logarithm of a number above 0, or NaN."""
    if not math.isfinite(x):
        return x
    half, k = math.frexp(x)
    high = int((2 * half - 1) * 2**20)  # upper bits of the mantissa
    k -= high < 0x6A09C
    f = 2 * half - 1 if high < 0x6A09C else half - 1
    if not 1 <= high < 0xFFFFE:
        r = f * f * (0.5 - 0.33333333333333333 * f)
        return k * LN2_HIGH - ((r - k * LN2_LOW) - f)
    s = f / (2 + f)
    z = s * s
    w = z * z
    r = z * _polynomial(w, LG_ODD) + w * _polynomial(w, LG_EVEN)
    if 0x6147A <= high <= 0x6B851:
        square = 0.5 * f * f
        return k * LN2_HIGH - ((square - (s * (square + r) + k * LN2_LOW)) - f)
    return k * LN2_HIGH - ((s * (f - r) - k * LN2_LOW) - f)


def power(x: float, y: float) -> float:
    """Return x ** y of a normal x above 0 and a y up to 2 ** 31. Raises ValueError for others."""
    if not (2.0**-1022 <= x < math.inf and abs(y) <= 2.0**31):
        raise ValueError(f"{x} to the power of {y}")
    if x == 1 or y == 0:
        return 1.0
    exact = {1.0: x, -1.0: 1 / x, 2.0: x * x, 0.5: math.sqrt(x)}
    if y in exact:
        return exact[y]
    t1, t2 = _binary_logarithm(x)
    y1 = _upper(y)
    low, high = (y - y1) * t1 + y * t2, y1 * t1
    z = low + high
    if z > 1024 or (z == 1024 and low + OVT > z - high):
        return math.inf
    if z < -1075 or (z == -1075 and low <= z - high):
        return 0.0
    return _power_of_two(high, low)


def _binary_logarithm(x: float) -> tuple[float, float]:
    """Return two numbers whose sum is log2(x) with more bits than a double has."""
    ax, n = math.frexp(x)
    if ax < (1 + 0xBB67A / 2**20) / 2:
        ax, n = 2 * ax, n - 1
    near = ax >= 1 + 0x3988F / 2**20
    bp, dp_high, dp_low = (1.5, DP_HIGH, DP_LOW) if near else (1.0, 0.0, 0.0)
    u, v = ax - bp, 1 / (ax + bp)
    ss = u * v
    s_high = _upper(ss)
    t_high = bp + (ax - ax % 2.0 ** (-20 if ax < 1 else -19))
    t_low = ax - (t_high - bp)
    s_low = v * ((u - s_high * t_high) - s_high * t_low)
    s2 = ss * ss
    r = s2 * s2 * _polynomial(s2, L) + s_low * (s_high + ss)
    s2 = s_high * s_high
    t_high = _upper(3 + s2 + r)
    t_low = r - ((t_high - 3) - s2)
    u, v = s_high * t_high, s_low * t_high + t_low * ss
    p_high = _upper(u + v)
    p_low = v - (p_high - u)
    z_high, z_low = CP_HIGH * p_high, CP_LOW * p_high + p_low * CP + dp_low
    t1 = _upper(((z_high + z_low) + dp_high) + n)
    return t1, z_low - (((t1 - n) - dp_high) - z_high)


def _power_of_two(high: float, low: float) -> float:
    z = low + high
    n = int(z + math.copysign(0.5, z)) if _upper(abs(z)) > 0.5 else 0
    high -= n
    t = _upper(low + high)
    u, v = t * LG2_HIGH, (low - (t - high)) * LG2 + t * LG2_LOW
    z = u + v
    w = v - (z - u)
    t = z * z
    t1 = z - t * _polynomial(t, P)
    return math.ldexp(1 - ((z * t1) / (t1 - 2) - (w + z * w) - z), n)


def _polynomial(x: float, coefficients: Sequence[float]) -> float:
    return reduce(lambda value, coefficient: coefficient + x * value, reversed(coefficients))


def _upper(x: float) -> float:
    """Return x without its lower 32 bits."""
    [bits] = struct.unpack("<q", struct.pack("<d", x))
    return float(struct.unpack("<d", struct.pack("<q", bits & ~0xFFFFFFFF))[0])
