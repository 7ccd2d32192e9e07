"""Files of wafer workloads: systems, tilings, tables of nodes, traces of cores."""
