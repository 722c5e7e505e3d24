"""The example wheel examples/rockchip_target, with a fake toolkit in place of Rockchip's."""

import os


def test_its_own_tests_pass(run_new, root):
    example = root / "examples" / "rockchip_target"
    paths = [str(example / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(example))
    done = run_new(*command, PYTHONPATH=os.pathsep.join(paths))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
