#!/bin/sh
# Before the package is removed, not before an upgrade. Debian gives "remove", RPM 0.
set -e

case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now ebbtide-shim.service || true
	fi
	;;
esac
