#!/bin/sh
# Runs before removal of the package. It ignores upgrades: for removal Debian passes "remove",
# RPM 0.
set -e

case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now ebbtide-shim.service || true
	fi
	;;
esac
