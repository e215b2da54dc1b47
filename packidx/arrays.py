"""Names of NumPy array types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float64s = NDArray[np.float64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Ints = NDArray[np.integer]
Uint64s = NDArray[np.uint64]
Uints = NDArray[np.unsignedinteger]
