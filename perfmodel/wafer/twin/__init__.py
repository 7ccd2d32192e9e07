"""The twin of the wafer workload generator huawei-csl/wse-workload-generator, oddities included.

Our own generator (`perfmodel.wafer.nodes`, `perfmodel.wafer.cores`) and this one (``compat``) are
asked by one setting (`perfmodel.wafer.setting`: systems, ranks, groups and parts of a batch), walk
through the blocks of a model in one way (`perfmodel.wafer.walk`), and share saved routings,
columns of instructions, core traces and their writer. What an operation comes to stays apart,
since one rule after the other differs and files are to be equal byte for byte:

- *Counts* (``rows``): weights and cache are what is read, and a message is one vector, whoever gets
  it; ours adds activations, cache writes, both ways of rings, the causal half and the new token.
- *Rows* (``rows``, ``experts``): every slice, view and concatenation of a single token is a row of
  one node, named after the tensors that it reads; ours are operations on all nodes at once.
- *Layouts* (``layouts``): blocks of any rank lie on banks in turn, and what views leave in other
  banks is moved without an instruction; ours are matrices on neighbouring cores, and all moves
  count.
- *Tiles* (``core_lines``): halved sides and one table for attention; ours differ by one at most.
- *Transfers* (``core_pieces``): a node's first core issues all copies, and chunks of a ring count
  from the number of a node; ours are issued beside the bank that sends.
- *Order* (``cores``): cores of a node meet before each operation, counted over the wafer as
  networkx sorts it; keys of all heads come before queries (``Walk.keys_first``).
"""
