"""The twin of the wafer workload generator huawei-csl/wse-workload-generator, oddities included.

Our own generator (`perfmodel.wafer.nodes`, `perfmodel.wafer.cores`) and this one (``compat``)
share what belongs to neither: systems, ranks, groups and parts of a batch
(`perfmodel.wafer.system`), saved routings, columns of instructions, core traces and their
writer. What they count and where they put it stays apart, since one rule after the other
differs and files are to be equal byte for byte:

- *Counts*: weights and cache are what is read, and a message is one vector, whoever gets it;
  ours adds activations, cache writes, both ways of rings, the causal half and the new token.
- *Rows*: every slice, view and concatenation of a single token is a row of one node, named after
  the tensors that it reads; ours are operations on all nodes at once, in arrays.
- *Layouts*: blocks of any rank lie on banks in turn, and what views leave in other banks is
  moved without an instruction; ours are matrices on neighbouring cores, and all moves count.
- *Tiles*: halved sides and one table for attention; ours differ by one at most.
- *Transfers*: a node's first core issues all copies, and chunks of a ring count from the number of
  a node; ours are issued beside the bank that sends.
- *Order*: cores of a node meet before each operation, counted over the wafer as networkx sorts it.
"""
