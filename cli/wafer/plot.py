"""``perfmodel plot wafer``: an operation on the nodes, cores and links of a wafer."""

from __future__ import annotations

import click

from perfmodel.base.units import format_size
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import activity, print_json, remark


@click.command("wafer", cls=Command, short_help="Draw an operation on a wafer.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@options.options_of("wafer.plot", "step", "operation", "layer", "system", "output")
@options.json_option
@options.verbosity_options
def wafer_command(
    workload: str,
    step: str,
    operation: str,
    layer: str,
    system: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Draw what an operation brings over the links of a wafer, and what each core does.

    WORKLOAD is what 'perfmodel workload cores' wrote, or a folder of the wafer workload
    generator with 'traces/' in it (then --system). Bytes run along rows, then along columns;
    colours are logarithmic. The matrix beside it has bytes from node to node.

    \b
    Examples:
      perfmodel plot wafer out/ --step decode0 --operation wkv_a -o wkv_a.png
      perfmodel plot wafer out/ --system system.json --layer decode10 --operation a2a_disp
    """
    from perfmodel.base.figures import check_plot
    from perfmodel.base.files import check_writable
    from perfmodel.wafer.figures import read_drawn, save_wafer
    from perfmodel.wafer.traffic import link_loads

    check_plot(output)
    check_writable(output)
    with activity(f"reading {workload}"):
        drawn = read_drawn(workload, step, operation, layer, system)
    save_wafer(drawn, output)
    loads = link_loads(drawn.traffic, drawn.system)
    if as_json:
        print_json(
            {
                "schema_version": "1",
                "output": output,
                "step": step,
                "operation": operation,
                "multiply_adds": float(drawn.traffic.macs.sum()),
                "bytes_between_cores": float(drawn.traffic.sizes.sum()),
                "byte_hops": loads.hops,
                "busiest_link_bytes": loads.busiest,
            }
        )
        return
    remark(f"busiest link {format_size(loads.busiest)}, longest way {loads.longest} links")
    click.echo(output)
