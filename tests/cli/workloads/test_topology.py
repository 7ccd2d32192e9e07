"""``perfmodel topology``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import run

MESH = ("--dimension", "mesh:4x4:200e9:1e-6")


def document(*arguments: str) -> Any:
    result = run("topology", "show", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["schema_version"]
    return found


def test_show_prints_the_facts_of_a_network() -> None:
    text = run("topology", "show", *MESH).stdout
    for line in ("devices              16", "links, directed      48", "6 hops", "2.667 hops"):
        assert line in text
    assert "bisection bandwidth  200 GB/s" in text
    assert "50 GB/s" in text


def test_show_gives_the_facts_as_json() -> None:
    found = document("--hardware", "dgx-h100", "--devices", "16")
    assert (found["devices"], found["switches"], found["links"]) == (16, 5, 68)
    assert found["diameter"] == 4
    assert found["bisection_bandwidth"] == 400e9
    assert [item["kind"] for item in found["dimensions"]] == ["switch", "fat-tree"]
    assert found["dimensions"][1]["link_bandwidths"] == [50e9, 400e9]
    assert "operation" not in found
    slower = document(
        *("--hardware", "dgx-h100", "--devices", "16", "--set", "system.network.1.bandwidth=25e9")
    )
    assert slower["bisection_bandwidth"] == 200e9


def test_show_lists_the_loads_of_an_operation() -> None:
    found = document(*MESH, "--operation", "all_to_all", "--size", "16MB")["operation"]
    assert (found["algorithm"], found["members"], found["messages"]) == ("direct", 16, 240)
    assert len(found["links"]) == 48
    # 1 → 2: 2 sources, 8 targets beyond it, 1 MB each.
    loads = {(item["source"], item["target"]): item["bytes"] for item in found["links"]}
    assert loads["1", "2"] == 16e6
    assert loads["0", "1"] == 12e6
    assert found["busiest_link_time"] == pytest.approx(16e6 / 50e9)
    assert found["bytes_over_links"] == pytest.approx(sum(loads.values()))


def test_show_prints_the_busiest_links_first() -> None:
    text = run(
        *("topology", "show", *MESH, "--operation", "point_to_point"),
        *("--members", "1,7", "--size", "1MB", "--lines", "2"),
    ).stdout
    assert "point_to_point direct, 1 MB, 2 members; messages: 1, steps: 1" in text
    assert "3 of 48 links used; the busiest takes 20.00 µs" in text
    assert "1 → 2" in text
    assert "… and 1 more" in text


def test_members_may_be_a_range() -> None:
    found = document(
        *("--hardware", "dgx-h100", "--devices", "32", "--operation", "all_reduce"),
        *("--members", "0:24:4", "--size", "1GiB"),
    )["operation"]
    assert found["members"] == 4
    assert {item["dimension"] for item in found["links"]} == {"infiniband"}


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_show_draws_a_figure(suffix: str, tmp_path) -> None:
    path = tmp_path / f"mesh{suffix}"
    result = run("topology", "show", *MESH, "--operation", "all_to_all", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert path.stat().st_size > 3000
    assert "drawn into" in result.stderr


def test_export_writes_what_show_reads(tmp_path) -> None:
    folder = tmp_path / "astra"
    node = ("--dimension", "fully-connected:8:448e9:0.7e-6", "--dimension", "rail:4:50e9:1e-6")
    result = run("topology", "export", *node, "--output", str(folder))
    assert result.exit_code == 0, result.stderr
    again = document("--network", str(folder / "network.yml"))
    assert again["devices"] == 32
    assert [item["kind"] for item in again["dimensions"]] == ["fully-connected", "switch"]
    assert again["bisection_bandwidth"] == pytest.approx(document(*node)["bisection_bandwidth"])


def test_export_of_a_fat_tree_needs_rails(tmp_path) -> None:
    cluster = ("--hardware", "dgx-h100", "--devices", "64", "--output", str(tmp_path))
    refused = run("topology", "export", *cluster)
    assert refused.exit_code == 2
    assert "is a fat-tree" in refused.stderr
    assert not list(tmp_path.iterdir())
    assert run("topology", "export", *cluster, "--rails").exit_code == 0
    assert "topology: [ Switch, Switch ]" in (tmp_path / "network.yml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*MESH, "--size", "1MB"), "--size belongs to an --operation"),
        ((*MESH, "--lines", "3"), "--lines belongs to an --operation"),
        ((*MESH, "--operation", "point_to_point"), "needs --members SOURCE,TARGET"),
        ((*MESH, "--operation", "all_reduce", "--members", "0,1,0"), "device 0 is a member once"),
        ((*MESH, "--operation", "all_reduce", "--members", "a"), "should be devices, as in 0,1"),
        (("--dimension", f"ring:{10**400}:1e9:0", *MESH), "more than 10^18 devices"),
        ((), "name one of --hardware with --devices, --network, --dimension"),
        ((*MESH, "--hardware", "dgx-h100"), "name one of"),
        ((*MESH, "--devices", "16"), "--devices and --set belong to --hardware"),
        (("--hardware", "dgx-h100"), "--hardware needs --devices"),
        (("--hardware", "dgx-h100", "--devices", "12"), "8 or a multiple of 8"),
        (("--dimension", "mash:4x4:1e9:0"), "did you mean mesh?"),
        (("--dimension", "mesh:4x4:1e9"), "KIND:SHAPE:BANDWIDTH:LATENCY"),
        (("--dimension", "mesh:4xb:1e9:0"), "shape '4xb' should be as in 8 or 4x4"),
        (("--dimension", "mesh:4x4:fast:0"), "should be numbers"),
        (("--dimension", "mesh:4x4:nan:0"), "finite number above 0"),
        (("--network", "nowhere.yml"), "nowhere.yml"),
        ((*MESH, "--algorithm", "ring"), "belongs to an --operation"),
        ((*MESH, "--operation", "all_reduced"), "did you mean all_reduce"),
        ((*MESH, "--operation", "all_reduce", "--algorithm", "rings"), "ring"),
        ((*MESH, "--operation", "all_reduce", "--members", "0,16"), "member 16 does not exist"),
        ((*MESH, "--operation", "all_reduce", "--size", "1K"), "write KB (1000) or KiB (1024)"),
        ((*MESH, "-o", "mesh.bmp"), "ends in .png, .svg, .pdf"),
        (("--dimension", "switch:512:1e9:0", "-o", "x.png"), "could not be read"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = run("topology", "show", *arguments, "--quiet")  # kernels may have to be compiled
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


def test_export_wants_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    for name in ("", "file"):
        refused = run("topology", "export", *MESH, "-o", name)
        assert refused.exit_code == 2
        assert "name a folder, as in astra/" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_members_keep_their_order() -> None:
    first = document(*MESH, "--operation", "broadcast", "--members", "5,0,1", "--algorithm", "ring")
    assert "5" in {link["source"] for link in first["operation"]["links"]}
    assert first["operation"]["members"] == 3


@pytest.mark.parametrize("command", [(), ("show",), ("export",)])
def test_help_fits_into_80_columns(command: tuple[str, ...]) -> None:
    text = run("topology", *command, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
