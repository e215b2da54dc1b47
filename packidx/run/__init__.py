"""Workers: how many processes do the work, and where. The caller's word alone decides."""
