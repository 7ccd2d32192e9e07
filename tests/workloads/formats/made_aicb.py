"""Values of CSV files."""

from __future__ import annotations

from hypothesis import strategies as st

from perfmodel.workloads.formats.aicb_tables import (
    VidurPart,
)

# Rows of AICB 23eec3c4: DeepSpeed stages 2 and 3, Megatron with a pipeline, the end of a pass.
HEADER = (
    "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,"
    "_elapsed_time,algbw,busbw,count"
)
numbers = st.integers(0, 2**62)

parts = st.builds(
    VidurPart, numbers, st.sampled_from(["attention", "mlp", "moe"]), numbers, numbers
)
