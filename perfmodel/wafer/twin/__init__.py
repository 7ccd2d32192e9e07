"""The twin of the wafer workload generator huawei-csl/wse-workload-generator, oddities included."""
