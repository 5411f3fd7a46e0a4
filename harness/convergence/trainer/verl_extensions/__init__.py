"""Code that verl's processes load through verl's extension points: rollouts, the reward, a CPU device.

Start with `verl_plugin.py`, which every process of verl imports. verl 0.6 uses `sync_rollout.py`, later
versions `rollout_server.py`.
"""
