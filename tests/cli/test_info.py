"""`info` and `verify`: what they print, where, and with which exit code."""

import json
from pathlib import Path

from tests.cli.conftest import call, fails, record


def test_info_is_for_people_and_for_programs(run: Path) -> None:
    assert "id (int), label (int), task (string)" in call("info", run).stdout
    document = json.loads(call("info", run, "--json").stdout)
    assert document["steps"] == 4
    assert {name: document["layers"]["0"][name] for name in ("d_in", "d_out", "slots")} == {
        "d_in": 3,
        "d_out": 5,
        "slots": 24,
    }


def test_names_are_never_read_as_markup(tmp_path: Path) -> None:
    assert "[bold]run[/bold]" in call("info", record(tmp_path / "[bold]run[" / "bold]")).stdout


def test_verify_certifies(run: Path) -> None:
    result = call("verify", run)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "dual = primal" in result.stdout
    assert "0.weight" in result.stdout
    document = json.loads(call("verify", run, "--json").stdout)
    assert document["ok"]
    assert document["steps_audited"] == 4
    assert document["layers"]["0"]["relative_error"] < 1e-5


def test_keys_alone_certify_nothing(tmp_path: Path) -> None:
    record(tmp_path / "keys", values=False)
    result = call("verify", tmp_path / "keys")
    assert result.exit_code == 3
    assert "NOT CERTIFIABLE: keys only" in result.stdout
    assert "steps certified" not in result.stdout
    as_json = call("verify", tmp_path / "keys", "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["keys_only"]
    assert json.loads(as_json.stdout)["status"] == "not certifiable"


def test_verify_finds_a_damaged_byte(run: Path) -> None:
    shard = run / "shard-000001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "is damaged" in fails("verify", run)


def test_verify_reports_shards_it_could_not_read(run: Path) -> None:
    (run / "shard-000002.safetensors").write_bytes(b"torn")
    result = call("verify", run)
    assert result.exit_code == 1
    assert "not read:" in result.stdout
    assert "shard-000002.safetensors is a corrupt shard" in result.stderr
