"""The local sandbox: a fork server in namespaces, without a daemon.

`kernel`, `seccomp`, `landlock`, `root`, `zygote`, `jail`, `worker` and `folder` run inside; they import the standard
library and each other only. `backend`, `handle`, `session` and `cgroups` are the supervisor's.
"""
