from commands import shoal


def test_a_complete_installation_passes() -> None:
    run = shoal("doctor")
    assert run.exit_code == 0, run.stdout
    assert run.stdout.endswith("Next: shoal demo\n")
    for what in ("python", "torch", "device", "free memory"):
        assert f"ok   {what}" in run.stdout
